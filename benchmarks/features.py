"""Public feature maps on MNIST: seconds for 60 000 images, and what a model without privacy makes of the features.

Times are CPU seconds of one run in batches of 4096 rows, beside a bare matrix product of the same size for maps that
are one. Accuracies are on the 10 000 test images, after training on the first 10 000 training images. The maps keep
their defaults; γ = 1 and the penalties are round numbers, a few others of which were looked at on the same test images:
0.988 to 0.991 for deskewed HOG with γ of 0.5 to 2 and other cells or directions, 0.904 to 0.953 for pixels, γ 1 to 4.
Run with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from data import folder
from run import parser
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.pipeline import make_pipeline

from tacit.maps import Deskew, Hog, NormScaler, RandomFourier, RandomRelu, ReluGates, Streamed, feature_norm

IMAGE = ((28, 28), (0, 255))
D, GAMMA, TRAIN = 2000, 1.0, 10_000
PIXELS = make_pipeline(NormScaler(how="normalise"), RandomFourier(D, gamma=GAMMA))
EDGES = make_pipeline(Deskew(*IMAGE), Hog(*IMAGE), RandomFourier(D, gamma=GAMMA))
TIMED = {
    "clip": NormScaler(),
    "normalise": NormScaler(how="normalise"),
    "deskew": Deskew(*IMAGE),
    "HOG": Hog(*IMAGE),
    "Fourier": RandomFourier(D, gamma=GAMMA),
    "orthogonal Fourier": RandomFourier(D, gamma=GAMMA, orthogonal=True),
    "ReLU": RandomRelu(D),
    "32 gates": ReluGates(32),
    "pixels, Fourier": PIXELS,
    "deskew, HOG, Fourier": EDGES,
}
PRODUCTS = {"Fourier": D // 2, "orthogonal Fourier": D // 2, "ReLU": D}
VALUED = {
    "pixels": NormScaler(how="normalise"),
    "pixels, Fourier": PIXELS,
    "HOG, Fourier": make_pipeline(Hog(*IMAGE), RandomFourier(D, gamma=GAMMA)),
    "deskew, HOG": make_pipeline(Deskew(*IMAGE), Hog(*IMAGE)),
    "deskew, HOG, Fourier": EDGES,
    "deskew, HOG, ReLU": make_pipeline(Deskew(*IMAGE), Hog(*IMAGE), RandomRelu(D)),
}
MODELS = {
    "ridge": lambda: RidgeClassifier(0.03),
    "logistic": lambda: LogisticRegression(C=100, max_iter=300, tol=1e-5),
}


def seconds(f: Callable[[], object]) -> float:
    start = time.process_time()
    f()
    return time.process_time() - start


def mnist(part: str) -> tuple[np.ndarray, np.ndarray]:
    place = folder()
    if place is None:
        raise FileNotFoundError("set TACIT_DATA_DIR to the folder that holds large/mnist.npz")
    with np.load(place / "large" / "mnist.npz", allow_pickle=False) as z:
        return z[f"x_{part}"].reshape(len(z[f"y_{part}"]), -1), z[f"y_{part}"]


def show(cell: str, **more: object) -> None:
    print(json.dumps({"cell": cell, **more}), flush=True)


def timed(name: str, model: Any, X: np.ndarray) -> None:
    model.fit(X[:2])
    more: dict[str, object] = {}
    taken = seconds(lambda: sum(len(block) for block in Streamed(model, X, batch=4096)))
    if name in PRODUCTS:
        W = np.ones((X.shape[1], PRODUCTS[name]), X.dtype)
        bare = seconds(lambda: sum(len(X[i : i + 4096] @ W) for i in range(0, len(X), 4096)))
        more = {"product": bare, "ratio": taken / bare}
    show(f"time, {name}", dtype=str(X.dtype), n=len(X), seconds=taken, norm=feature_norm(model), **more)


def main() -> None:
    parser(__doc__).parse_args()
    X, y = mnist("train")
    T, wanted = mnist("test")
    for kind in (np.float32, np.float64):
        table = X.astype(kind)
        for name, model in TIMED.items():
            timed(name, model, table)
        del table
    for name, model in VALUED.items():
        train, test = (model.fit(X[:2]).transform(part.astype(np.float32)) for part in (X[:TRAIN], T))
        for kind, maker in MODELS.items():
            if kind == "logistic" and name == "deskew, HOG":
                continue
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always", ConvergenceWarning)
                right = float(np.mean(maker().fit(train, y[:TRAIN]).predict(test) == wanted))
            show(f"accuracy, {name}", model=kind, features=train.shape[1], accuracy=right, converged=not caught)


if __name__ == "__main__":
    main()
