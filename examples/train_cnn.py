"""Train a small convolutional network under differential privacy, with three kinds of noise at the same ε.

    python examples/train_cnn.py                 # 8×8 digits from scikit-learn, a minute or two
    python examples/train_cnn.py --data mnist    # needs TACIT_DATA_DIR

"dpsgd" is independent noise; "bandmf" cancels noise over steps; "noisecurve" does it for the curvature of this network,
measured on public images with random labels. The images of the other half of the classes serve as public data here.
"""

from __future__ import annotations

import argparse
import os
import pathlib

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from tacit.torch import PrivateTrainer, hessian_spectrum


def load(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return torch.tensor(X / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(y)
    folder = os.environ.get("TACIT_DATA_DIR")
    if folder is None:
        raise SystemExit("--data mnist needs TACIT_DATA_DIR, the folder that holds large/mnist.npz")
    with np.load(pathlib.Path(folder) / "large" / "mnist.npz") as file:
        images, labels = file["x_train"], file["y_train"]
    return torch.tensor(images / 255, dtype=torch.float32).unsqueeze(1), torch.tensor(labels.astype(np.int64))


def network(classes: int = 10) -> nn.Module:
    """GroupNorm in place of BatchNorm: a record's gradient must not depend on other records."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU()),
        *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, classes)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--epsilon", type=float, default=6.0)
    parser.add_argument("--epochs", type=float, default=20)
    parser.add_argument("--batch-size", type=int, default=0, help="default: a twelfth of the records")
    parser.add_argument("--learning-rate", type=float, default=1.0)
    parser.add_argument("--strategies", nargs="+", default=["dpsgd", "bandmf", "noisecurve"])
    args = parser.parse_args()

    X, y = load(args.data)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
    public, test, train = order[: len(X) // 6], order[len(X) // 6 : len(X) // 3], order[len(X) // 3 :]
    loss, delta = nn.CrossEntropyLoss(), 0.1 / len(train)
    spectrum = None
    if "noisecurve" in args.strategies:
        spectrum = hessian_spectrum(network(), loss, X[public][:1000], classes=10, top=50, probes=4)
        print(f"curvature of the public images: {spectrum}")
    for strategy in args.strategies:
        trainer = PrivateTrainer(
            network(),
            loss,
            epsilon=args.epsilon,
            delta=delta,
            batch_size=args.batch_size or len(train) // 12,
            epochs=args.epochs,
            learning_rate=args.learning_rate,
            strategy=strategy,
            spectrum=spectrum,
        )
        trainer.fit((X[train], y[train]), evaluate_on=(X[test], y[test]))
        plan, accuracy = trainer.plan_, trainer.history_[-1].metrics["accuracy"]
        print(
            f"{strategy:10s} accuracy {accuracy:.3f}  ε = {trainer.certificate_.epsilon(delta):.3f} at δ = {delta:.1e} "
            f"({plan.adjacency.value}), {plan.n_steps} steps, {plan.bands} bands, σ/C = {plan.noise_multiplier:.2f}"
        )


if __name__ == "__main__":
    main()
