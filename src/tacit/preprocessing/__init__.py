"""Scalers, encoders and statistics that are public or paid for, and the certificate of a whole pipeline."""

from tacit.preprocessing.bounds import BoundsScaler
from tacit.preprocessing.certificates import certificate_of
from tacit.preprocessing.one_hot import PublicOneHotEncoder
from tacit.preprocessing.quantiles import DPQuantileScaler, private_quantiles
from tacit.preprocessing.standard import DPStandardScaler
from tacit.preprocessing.statistics import private_mean, private_variance

__all__ = [
    "BoundsScaler",
    "DPQuantileScaler",
    "DPStandardScaler",
    "PublicOneHotEncoder",
    "certificate_of",
    "private_mean",
    "private_quantiles",
    "private_variance",
]
