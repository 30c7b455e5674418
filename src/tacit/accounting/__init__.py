"""Privacy accounting: one file per theorem family, certificates, and calibration.

The functions below are thin: each is one theorem's number. ``certify`` turns a whole plan into a certificate. A theorem
takes part by being defined: every module of this folder is imported here, also those that are in no list below.
"""

from tacit._registry import load_folder
from tacit.accounting.banded import participation_sensitivity
from tacit.accounting.bands import BandCandidate, BandChoice, choose_bands
from tacit.accounting.block_sweeps import block_sweep_mu
from tacit.accounting.calibration import Calibration, banded_noise_multiplier, calibrate, max_feasible
from tacit.accounting.certificate import Bound, Certificate, certify, compare_theorems
from tacit.accounting.curve import Curve, Gaussian, Profile, Sampled, compose
from tacit.accounting.cyclic import noisy_cyclic_delta, noisy_cyclic_mu
from tacit.accounting.gdp import gdp_delta, gdp_epsilon, gdp_mu
from tacit.accounting.last_iterate import OptimalShifts, last_iterate_mu, last_iterate_shifts
from tacit.accounting.noisy_max import bounded_range_mu, bounded_range_of_mu
from tacit.accounting.poisson import poisson_epsilon
from tacit.accounting.selection import selection_epsilon
from tacit.accounting.theorem import Assumption, Gap, Theorem, theorem_named, theorems

__all__ = [
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
    "banded_noise_multiplier",
    "block_sweep_mu",
    "bounded_range_mu",
    "bounded_range_of_mu",
    "calibrate",
    "certify",
    "choose_bands",
    "compare_theorems",
    "compose",
    "gdp_delta",
    "gdp_epsilon",
    "gdp_mu",
    "last_iterate_mu",
    "last_iterate_shifts",
    "max_feasible",
    "noisy_cyclic_delta",
    "noisy_cyclic_mu",
    "participation_sensitivity",
    "poisson_epsilon",
    "selection_epsilon",
    "theorem_named",
    "theorems",
]

load_folder(__name__, __path__)
