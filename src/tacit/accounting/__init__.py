"""Privacy accounting: one file per theorem family, certificates, and calibration.

The functions below are thin: each is one theorem's number. ``certify`` turns a whole plan into a certificate.
"""

from tacit.accounting.banded import participation_sensitivity
from tacit.accounting.bands import BandCandidate, BandChoice, choose_bands
from tacit.accounting.block_sweeps import block_sweep_mu
from tacit.accounting.calibrate import Calibration, affordable, banded_noise_multiplier, calibrate
from tacit.accounting.certificate import ACCOUNTANTS, Bound, Certificate, certify, survey
from tacit.accounting.curve import Curve, Gaussian, Profile, Sampled, compose
from tacit.accounting.gdp import gdp_delta, gdp_epsilon, gdp_mu
from tacit.accounting.last_iterate import (
    OptimalShifts,
    last_iterate_mu,
    last_iterate_shifts,
    noisy_cyclic_delta,
    noisy_cyclic_mu,
)
from tacit.accounting.poisson import poisson_epsilon
from tacit.accounting.selection import selection_epsilon
from tacit.accounting.theorem import Accountant, Assumption, Gap, Theorem

__all__ = [
    "ACCOUNTANTS",
    "Accountant",
    "Assumption",
    "BandCandidate",
    "BandChoice",
    "Bound",
    "Calibration",
    "Certificate",
    "Curve",
    "Gap",
    "Gaussian",
    "OptimalShifts",
    "Profile",
    "Sampled",
    "Theorem",
    "affordable",
    "banded_noise_multiplier",
    "block_sweep_mu",
    "calibrate",
    "certify",
    "choose_bands",
    "compose",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "last_iterate_mu",
    "last_iterate_shifts",
    "noisy_cyclic_delta",
    "noisy_cyclic_mu",
    "participation_sensitivity",
    "poisson_epsilon",
    "selection_epsilon",
    "survey",
]
