"""What is added: exact rounded normal noise; strategies C for correlated noise with certificates, and rows of C⁻¹Z."""

from tacit.noise.blt import BufferedToeplitz, optimise_buffered
from tacit.noise.optimum import (
    Optimum,
    certified_bound,
    optimise,
    optimise_toeplitz,
    stationary_columns,
)
from tacit.noise.rounded import rounded_normal
from tacit.noise.sensitivity import separated_sensitivity, toeplitz_sensitivity
from tacit.noise.spectrum import Decays, Modes, compress_modes, compress_spectrum
from tacit.noise.strategies import (
    Strategy,
    from_gram,
    identity,
    resized,
    square_root,
    square_root_coefficients,
    toeplitz,
    unit_columns,
)
from tacit.noise.streaming import StreamingNoise, StreamState
from tacit.noise.workloads import (
    Filter,
    LowRank,
    Workload,
    gradient_norms,
    last_iterate,
    mean_path_loss,
    noise_curve_paper_2,
    noisecurve_workload,
    prefix_sum,
    sgd_workload,
)

__all__ = [
    "BufferedToeplitz",
    "Decays",
    "Filter",
    "LowRank",
    "Modes",
    "Optimum",
    "Strategy",
    "StreamState",
    "StreamingNoise",
    "Workload",
    "certified_bound",
    "compress_modes",
    "compress_spectrum",
    "from_gram",
    "gradient_norms",
    "identity",
    "last_iterate",
    "mean_path_loss",
    "noise_curve_paper_2",
    "noisecurve_workload",
    "optimise",
    "optimise_buffered",
    "optimise_toeplitz",
    "prefix_sum",
    "resized",
    "rounded_normal",
    "separated_sensitivity",
    "sgd_workload",
    "square_root",
    "square_root_coefficients",
    "stationary_columns",
    "toeplitz",
    "toeplitz_sensitivity",
    "unit_columns",
]
