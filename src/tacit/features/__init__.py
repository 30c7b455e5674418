"""Public feature maps of bounded norm: functions of one record and public constants, free of cost."""

from tacit.features.certified import feature_norm, row_local
from tacit.features.deskew import Deskew
from tacit.features.fourier import RandomFourier
from tacit.features.gates import ReluGates
from tacit.features.hog import Hog
from tacit.features.join import Join
from tacit.features.recipes import image_features
from tacit.features.relu import RandomRelu
from tacit.features.scaling import NormScaler
from tacit.features.streamed import Streamed

__all__ = [
    "Deskew",
    "Hog",
    "Join",
    "NormScaler",
    "RandomFourier",
    "RandomRelu",
    "ReluGates",
    "Streamed",
    "feature_norm",
    "image_features",
    "row_local",
]
