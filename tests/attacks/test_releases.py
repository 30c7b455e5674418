"""Releases that are impossible on a neighbour: none in exact arithmetic, and how many in floating point.

An attacker who knows both neighbours and every clean sum looks at the bits of what a session releases (`attacking.py`).
Figures of ``make attack`` are in benchmarks/results/attacks.jsonl.
"""

from __future__ import annotations

import pytest
from attacking import ANSWERS, CHANGED, EPSILONS, FAMILIES, correlated_releases, fits, session_releases

from tacit.accounting import certify, gdp_mu
from tacit.audit import audit_bits
from tacit.mechanism import Mechanism

FLOAT = {0.1: (0.0375, 0.140), 1.0: (0.182, 0.215), 10.0: (0.582, 0.603)}
"""Shares of 10⁶ floats on D that D′ cannot release: if the attacker knows the sums; if fl(σz) is known, too."""


def attack_session(epsilon: float, n: int, seed: int) -> dict[str, object]:
    """n releases on each side in both arithmetics: impossible ones, as counted in three ways."""
    found: dict[str, object] = {"epsilon": epsilon, "releases": n, "seed": seed}
    certificate = certify(Mechanism(adjacency="replace-one", ratio=gdp_mu(epsilon, 1e-6), steps=1))
    for arithmetic in ("exact", "float"):
        (D, sigma), (D2, _) = (session_releases(X, epsilon, arithmetic, n, seed) for X in (ANSWERS, CHANGED))
        known = audit_bits(lambda k, D=D: D, lambda k, D2=D2: D2, n, values=(0.0, -2.0))
        scaled = audit_bits(lambda k, D=D: D, lambda k, D2=D2: D2, n, values=(0.0, -2.0), sigma=sigma)
        blind = audit_bits(lambda k, D=D: D, lambda k, D2=D2: D2, n)
        found[arithmetic] = {
            "impossible": known.impossible,
            "impossible_if_scaled": scaled.impossible,
            "learnt": blind.impossible,
            "violated": known.verdict(certificate).violated,
        }
    return found


def check_session(found: dict, n: int) -> None:
    exact, floats = found["exact"], found["float"]
    assert (exact["impossible"], exact["impossible_if_scaled"], exact["learnt"]) == (0, 0, 0)
    assert not exact["violated"]
    assert floats["violated"]
    share, scaled = FLOAT[found["epsilon"]]
    slack = 4 * (share * (1 - share) / n) ** 0.5 + 0.003
    assert abs(floats["impossible"] / n - share) < slack
    assert abs(floats["impossible_if_scaled"] / n - scaled) < slack
    assert floats["learnt"] > share * n / 6


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_releases_of_a_session(epsilon):
    check_session(attack_session(epsilon, 4000, 1), 4000)


@pytest.mark.attack
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_a_million_releases_of_a_session(epsilon, record_property):
    found = attack_session(epsilon, 10**6, 2)
    for name, value in found.items():
        record_property(name, value)
    check_session(found, 10**6)


def attack_correlated(epsilon: float, arithmetic: str, n: int, seed: int) -> int:
    """Runs on D whose bits were never seen on D′."""
    D, D2 = (correlated_releases(X, epsilon, arithmetic, n, seed) for X in (ANSWERS, CHANGED))
    return audit_bits(lambda k: D, lambda k: D2, n).impossible


def test_correlated_noise_in_floats_is_found_out():
    assert attack_correlated(10.0, "float", 1000, 6) > 50


@pytest.mark.attack
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_runs_of_correlated_noise(epsilon, record_property):
    found = {arithmetic: attack_correlated(epsilon, arithmetic, 10_000, 7) for arithmetic in ("exact", "float")}
    for name, value in ({"epsilon": epsilon, "runs": 10_000, "seed": 7} | found).items():
        record_property(name, value)
    assert found["exact"] == 0


def attack_fits(name: str, epsilon: float, n: int, seed: int) -> dict[str, object]:
    """Fits on D and D′ in both arithmetics: impossible releases, and what the bits of the models tell."""
    out: dict[str, object] = {"family": name, "epsilon": epsilon, "fits": n, "seed": seed}
    for asked in ("exact", "float"):
        watch, here, there = fits(FAMILIES[name], epsilon, asked, n, seed)
        learnt = audit_bits(lambda k, here=here: here, lambda k, there=there: there, n) if n >= 1000 else None
        out[asked] = {
            "releases": dict(watch.releases),
            "impossible": dict(watch.impossible),
            "learnt": None if learnt is None else learnt.impossible,
        }
    return out


def check_fits(found: dict) -> None:
    assert found["exact"]["impossible"].get("exact", 0) == 0
    assert found["float"]["releases"].keys() <= {"float"}
    if found["exact"]["releases"].keys() == {"exact"}:
        assert not found["exact"]["learnt"]


@pytest.mark.parametrize("name", FAMILIES)
def test_releases_of_fits(name):
    """A five-hundredth of what ``make attack`` runs."""
    n = FAMILIES[name].fits // 500 + 2
    found = [attack_fits(name, epsilon, n, 3) for epsilon in EPSILONS]
    for one in found:
        check_fits(one)


def test_floats_are_found_out_in_fits():
    found = attack_fits("moments", 1.0, 40, 4)
    assert found["float"]["impossible"]["float"] > 10
    assert found["exact"]["releases"]["exact"] == 40


@pytest.mark.attack
@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("name", FAMILIES)
def test_thousands_of_fits(name, epsilon, record_property):
    found = attack_fits(name, epsilon, FAMILIES[name].fits, 5)
    for key, value in found.items():
        record_property(key, value)
    check_fits(found)
