"""Strategies C for correlated noise: what they are held against, the best ones with certificates, rows of C⁻¹Z."""

from tacit.factorisation.blt import BufferedState, BufferedToeplitz, buffered_next_row, optimise_buffered
from tacit.factorisation.optimum import (
    Optimum,
    certified_bound,
    optimise,
    optimise_noise_curve,
    optimise_toeplitz,
    stationary_columns,
)
from tacit.factorisation.sensitivity import separated_sensitivity, single_sensitivity, toeplitz_sensitivity
from tacit.factorisation.spectrum import Decays, Modes, compress_modes, compress_spectrum
from tacit.factorisation.strategies import (
    from_gram,
    identity,
    inverse_row_norms,
    resized,
    square_root,
    square_root_coefficients,
    to_dense,
    toeplitz,
    unit_columns,
)
from tacit.factorisation.streaming import StreamState, init, next_row
from tacit.factorisation.workloads import (
    Filter,
    LowRank,
    Workload,
    gradient_norms,
    noise_curve,
    noise_curve_paper_2,
    prefix_sum,
    sgd,
)

__all__ = [
    "BufferedState",
    "BufferedToeplitz",
    "Decays",
    "Filter",
    "LowRank",
    "Modes",
    "Optimum",
    "StreamState",
    "Workload",
    "buffered_next_row",
    "certified_bound",
    "compress_modes",
    "compress_spectrum",
    "from_gram",
    "gradient_norms",
    "identity",
    "init",
    "inverse_row_norms",
    "next_row",
    "noise_curve",
    "noise_curve_paper_2",
    "optimise",
    "optimise_buffered",
    "optimise_noise_curve",
    "optimise_toeplitz",
    "prefix_sum",
    "resized",
    "separated_sensitivity",
    "sgd",
    "single_sensitivity",
    "square_root",
    "square_root_coefficients",
    "stationary_columns",
    "to_dense",
    "toeplitz",
    "toeplitz_sensitivity",
    "unit_columns",
]
