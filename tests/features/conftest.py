"""Every public map, on tables of 64 columns (8 × 8 pixels)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from tacit.features import Deskew, Hog, Join, NormScaler, RandomFourier, RandomRelu, ReluGates

IMAGE = ((8, 8), (-2, 3))
MAPS = {
    "clip": NormScaler(0.7),
    "normalise": NormScaler(3.0, how="normalise"),
    "gates": ReluGates(5, gate_seed=1, norm=0.5),
    "fourier": RandomFourier(32, gamma=0.1),
    "orthogonal": RandomFourier(200, gamma=0.1, orthogonal=True),
    "relu": RandomRelu(40, norm=2.0),
    "deskew": Deskew(*IMAGE),
    "hog": Hog(*IMAGE, cell=2),
    "equal sizes": Deskew(*IMAGE, spread=(0.2, 0.2)),
    "root hog": Hog(*IMAGE, cell=4, root=True),
    "signed hog": Hog(*IMAGE, cell=4, block=1, signed=True, orientations=8),
    "join": Join(
        [("chain", make_pipeline(Deskew(*IMAGE), Hog(*IMAGE))), ("pixels", NormScaler()), ("raw", Deskew(*IMAGE))],
        weights={"chain": 0.6, "pixels": 0.3},
    ),
}


@pytest.fixture(params=MAPS, ids=str)
def model(request: pytest.FixtureRequest) -> Any:
    return clone(MAPS[request.param])


@pytest.fixture
def table() -> Callable[..., NDArray[np.float64]]:
    """Records of 64 columns."""

    def made(n: int = 30, seed: int = 0) -> NDArray[np.float64]:
        return np.random.default_rng(seed).normal(size=(n, 64))

    return made
