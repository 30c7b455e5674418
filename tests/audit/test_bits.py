"""The bit-level audit: what floats give away is found, what a lattice hides is not imagined, and bounds hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.audit import audit_bits, multiples, reaches
from tacit.errors import InvalidInput

SIGMA = 8.45
UNIT = 2.0**-30


def floats(q: float, rng: np.random.Generator, sigma: float = SIGMA):
    return lambda k: q + sigma * rng.normal(size=k)


def lattice(q: float, rng: np.random.Generator, sigma: float = SIGMA, unit: float = UNIT):
    """Rounded as a whole: what exact arithmetic has the law of."""
    return lambda k: np.rint((q + sigma * rng.normal(size=k)) / unit) * unit


# -- what noise reaches -----------------------------------------------------------------------------------------------


def test_what_was_made_is_reached_and_neighbours_miss_a_known_share():
    """P[impossible] at σ = 8.45 is 0.18, or 0.21 if noise is known to be fl(σz): figures of 10⁵ releases."""
    rng = np.random.default_rng(0)
    x = 0.0 + SIGMA * rng.normal(size=100_000)
    assert reaches(x, 0.0).all()
    assert reaches(x, 0.0, SIGMA).all()
    assert 0.178 < (~reaches(x, -2.0)).mean() < 0.186
    assert 0.205 < (~reaches(x, -2.0, SIGMA)).mean() < 0.222
    other = -2.0 + SIGMA * rng.normal(size=100_000)
    assert reaches(other, -2.0, SIGMA).all()


def test_reaching_is_what_a_search_through_all_noise_says():
    """Small floats: every w is tried, by float16 numbers scaled into float64's last bits."""
    step = np.spacing(1.0)
    w = 1.0 + step * np.arange(-64, 64)  # floats on both sides of 1, where the spacing changes
    w = np.unique(np.concatenate([w, np.nextafter(w, 0)]))
    for q in (-1.0, -0.75, 0.3, 2.0**-30):
        made = set((q + w).tolist())
        inner = np.array(sorted(made))[20:-20]
        spaces = np.concatenate([inner, np.nextafter(inner, np.inf), np.nextafter(inner, -np.inf)])
        for x, found in zip(spaces.tolist(), reaches(spaces, q).tolist(), strict=True):
            assert found == (x in made or any(q + v == x for v in np.nextafter(x - q, [-np.inf, np.inf])))


def test_multiples_of_irrational_units():
    unit = 2.0**-30 * math.sqrt(2)
    k = np.random.default_rng(0).integers(-(2**40), 2**40, 1000)
    assert multiples(k * unit, unit).all()
    assert not multiples(np.nextafter(k * unit, np.inf), unit).any()
    assert not multiples(np.array([np.nan, np.inf]), 1.0).any()


# -- what the audit finds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [72.6, 8.45, 1.08], ids=["ε=0.1", "ε=1", "ε=10"])
def test_float_noise_is_found_and_a_lattice_is_not(sigma, gaussian_claim):
    rng, claim = np.random.default_rng(1), gaussian_claim(2 / sigma)
    for _ in range(3):
        blind = audit_bits(floats(0, rng, sigma), floats(-2, rng, sigma), 2000)
        assert blind.impossible > 15
        assert blind.impossible_upper < 0.02
        known = audit_bits(floats(0, rng, sigma), floats(-2, rng, sigma), 2000, values=(0, -2), sigma=sigma)
        assert known.impossible_rate > 0.05
        assert known.impossible_upper == 0
        assert known.verdict(claim).violated
        assert known.epsilon_lower(1e-6) == math.inf
        for values in (None, (0, -2)):
            exact = audit_bits(lattice(0, rng, sigma), lattice(-2, rng, sigma), 2000, values=values, sigma=sigma)
            assert exact.impossible == 0
            assert not exact.verdict(claim).violated


def test_figures_of_the_attack_that_learns():
    """Without the sums it finds seven tenths of what an attacker finds who knows them."""
    rng = np.random.default_rng(2)
    blind = audit_bits(floats(0, rng), floats(-2, rng), 20_000)
    known = audit_bits(floats(0, rng), floats(-2, rng), 20_000, values=(0, -2))
    assert 0.7 < blind.impossible_rate / known.impossible_rate <= 1.05
    assert "never seen on D2" in str(blind)


def planted(name: str, rng: np.random.Generator):
    """Two samplers with one fault each, 1,000-GDP otherwise: only bits tell."""
    R = rng.integers

    def release(on_D: bool):
        def draw(k: int) -> np.ndarray:
            x = UNIT * R(-(2**40), 2**40, k)
            match name:
                case "an unrounded sum":
                    return x + (UNIT / 3 if on_D else UNIT / 5)
                case "minus zero":
                    return np.where(R(20, size=k) == 0, -0.0 if on_D else 0.0, x)
                case "payload":
                    nan = np.array([0x7FF8000000000000 + (1 if on_D else 2)]).view(np.float64)[0]
                    return np.where(R(20, size=k) == 0, nan, x)
                case "denormal":
                    return np.where(R(20, size=k) == 0, 5e-324 if on_D else UNIT, x)
                case "a value":
                    return np.where(R(20, size=k) == 0, 1.0 + UNIT * (7 if on_D else 9), x)
                case "even":
                    return 2 * x if not on_D else x
                case "one of two columns":
                    return np.stack([x, x + (UNIT / 3 if on_D else 0)], axis=1)
            raise AssertionError(name)

        return draw

    return release(True), release(False)


@pytest.mark.parametrize(
    "name", ["an unrounded sum", "minus zero", "payload", "denormal", "a value", "even", "one of two columns"]
)
def test_planted_faults_are_found(name, pure_claim):
    audit = audit_bits(*planted(name, np.random.default_rng(3)), 2000)
    assert audit.impossible > 20, str(audit)
    assert audit.verdict(pure_claim(0.5)).violated or audit.impossible < 200  # a twentieth is seen, not e^½ of it
    assert audit.epsilon_lower(0.0) > 1


def test_no_alarm_where_bits_say_nothing(too_many, gaussian_claim):
    """Lattices fine and coarse, far and near: ``impossible`` is 0, and true claims are rarely called violated."""
    rng, violated, runs = np.random.default_rng(4), 0, 0
    for sigma in (0.5, 3.0, 40.0):
        for unit in (2.0**-36, 2.0**-10, 3e-7):
            for _ in range(12):
                audit = audit_bits(*(lattice(q, rng, sigma, unit) for q in (0.0, sigma)), 400)
                assert audit.impossible == 0, str(audit)
                violated += audit.verdict(gaussian_claim(1.0)).violated
                runs += 1
    assert not too_many(violated, runs, 0.05)


# -- how it is called -------------------------------------------------------------------------------------------------


def test_functions_with_and_without_a_number():
    rng = np.random.default_rng(5)
    q = 0.0
    shapes = [
        lambda: rng.normal(),
        lambda q=q: q + rng.normal(size=3),
        lambda k: rng.normal(size=(k, 3)).tolist(),
        lambda k: rng.normal(size=(k, 2, 2)).astype(np.float32),
        lambda k: rng.integers(5, size=k),
    ]
    for release in shapes:
        assert audit_bits(release, release, 60).n_runs == 60


@pytest.mark.parametrize(
    ("one", "n", "says"),
    [
        (3.0, 100, "callable"),
        (lambda k: np.zeros(k - 1), 100, "100 releases"),
        (lambda k: np.zeros(k), 10, "too few"),
        (lambda k: np.array(["a"] * k), 100, "real numbers"),
        (lambda k: np.full(k, 2**60 + 1), 100, "integers beyond"),
        (lambda k: np.zeros((k, 3)), 100, "shape must not tell"),
    ],
)
def test_what_is_refused(one, n, says):
    with pytest.raises(InvalidInput, match=says):
        audit_bits(one, lambda k: np.zeros(k), n)


def test_wrong_sums_are_no_proof():
    """If the stated sums are wrong, releases on D2 are unreachable, too, and then counts decide."""
    rng = np.random.default_rng(6)
    audit = audit_bits(floats(-2, rng), floats(0, rng), 2000, values=(0, -2))
    assert math.isfinite(audit.epsilon_lower(0.0))
    with pytest.raises(InvalidInput, match="values"):
        audit_bits(floats(0, rng), floats(0, rng), 100, values=(0, [1, 2, 3]))
