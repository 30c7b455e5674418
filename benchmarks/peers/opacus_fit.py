"""DP-SGD of Opacus on a problem that ``timing.py`` has written: a linear model, Poisson batches, one JSON line a fit.

The step is what our own ``ProximalSGD`` takes: 1/(sup φ″·R²), R² the number of coordinates.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import numpy as np
import torch
from opacus import PrivacyEngine


def fit(problem: dict[str, np.ndarray], epsilon: float, passes: int, batch: int) -> tuple[np.ndarray, float]:
    X, y = (torch.tensor(problem[name], dtype=torch.float32) for name in ("X", "y"))
    n, p = X.shape
    squared = problem["loss"] == "squared"
    model = torch.nn.Linear(p, 1)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    curvature = 1.0 if squared else 0.25
    decay = float(problem["alpha"])
    plain = torch.optim.SGD(model.parameters(), lr=1 / (curvature * (p + 1)), weight_decay=decay)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=batch)
    model, optimiser, loader = PrivacyEngine().make_private_with_epsilon(
        module=model,
        optimizer=plain,
        data_loader=loader,
        target_epsilon=epsilon,
        target_delta=1 / n**2,
        epochs=passes,
        max_grad_norm=(p + 1) ** 0.5,
    )
    for _ in range(passes):
        for rows, target in loader:
            optimiser.zero_grad()
            f = model(rows)[:, 0]
            each = (f - target).square() / 2 if squared else torch.nn.functional.softplus(-target * f)
            each.mean().backward()
            optimiser.step()
    weight, bias = (value.detach().numpy().ravel() for value in model.parameters())
    return weight, float(bias[0])


def main(path: str, epsilon: str, passes: str, batch: str, repeats: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with np.load(path) as held:
        problem = dict(held)
    for _ in range(int(repeats)):
        start, cpu = time.perf_counter(), time.process_time()
        w, b = fit(problem, float(epsilon), int(passes), int(batch))
        wall, used = time.perf_counter() - start, time.process_time() - cpu
        print(json.dumps({"w": w.tolist(), "b": b, "seconds": wall, "cpu": used}))


if __name__ == "__main__":
    main(*sys.argv[1:])
