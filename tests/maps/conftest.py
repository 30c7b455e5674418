"""Every public map, on tables of 64 columns (8 × 8 pixels)."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from tacit.maps import Deskew, Hog, Join, NormScaler, RandomFourier, RandomRelu, ReluGates

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
def model(request):
    return clone(MAPS[request.param])


@pytest.fixture
def table():
    return lambda n=30, seed=0: np.random.default_rng(seed).normal(size=(n, 64))
