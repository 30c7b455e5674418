"""Every figure of the oracle file, computed independently of this library."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from papers.published import diffusion_rdp

from tacit.accounting import (
    gdp_delta,
    gdp_epsilon,
    gdp_mu,
    last_iterate_mu,
    noisy_cyclic_mu,
    poisson_epsilon,
    selection_epsilon,
)
from tacit.accounting.selection import renyi_poisson_epsilon

ORACLES = json.loads((Path(__file__).parent / "oracles.json").read_text(encoding="utf-8"))
DELTA = 1e-5


# -- Poisson sampling ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ORACLES["seed003_base"], ids=lambda c: f"sigma={c['sigma']}")
@pytest.mark.parametrize(
    ("relation", "key", "factor"),
    [
        ("replace-one", "pld_replace_one", 1.0),
        ("add-remove", "pld_add_remove", 1.0),
        ("zero-out", "pld_replace_special", 1.0),
        ("add-remove", "pld_add_remove_half_sigma", 0.5),
    ],
)
def test_poisson_sampling(case, relation, key, factor):
    rate, steps = case["b"] / case["n"], case["epochs"] * case["n"] // case["b"]
    found = poisson_epsilon(case["sigma"] * factor, rate, steps, DELTA, adjacency=relation)
    assert found == pytest.approx(case[key], rel=1e-6)


@pytest.mark.parametrize("case", ORACLES["seed003_base"], ids=lambda c: f"sigma={c['sigma']}")
def test_poisson_sampling_for_cifar(case):
    found = poisson_epsilon(case["sigma"], 1000 / 50000, 400 * 50, DELTA, adjacency="replace-one")
    assert found == pytest.approx(case["cifar_n50000_replace_one"], rel=1e-6)


@pytest.mark.parametrize("case", ORACLES["seed003_base"], ids=lambda c: f"sigma={c['sigma']}")
def test_the_papers_figure_is_a_central_limit_approximation(case):
    assert gdp_epsilon(case["clt_gdp_mu_half_sigma"], DELTA) == pytest.approx(case["clt_gdp_eps_half_sigma"], rel=1e-6)


# -- Gaussian ------------------------------------------------------------------------------------------------


def test_gaussian_traps():
    traps = ORACLES["gaussian_noise1_traps"]
    assert gdp_epsilon(1.0, DELTA) == pytest.approx(traps["exact_sens1"], rel=1e-9)
    assert gdp_epsilon(2.0, DELTA) == pytest.approx(traps["exact_sens2"], rel=1e-9)
    assert traps["RDP_REPLACE_ONE"] < traps["exact_sens2"] / 2


@pytest.mark.parametrize("case", ORACLES["gdp_conversion"], ids=lambda c: f"mu={c['mu']}")
def test_gdp_conversion(case):
    assert gdp_epsilon(case["mu"], DELTA) == pytest.approx(case["eps"], rel=1e-9)
    assert gdp_delta(case["mu"], 1.0) == pytest.approx(case["delta_at_eps1"], rel=1e-9)
    assert case["eps"] < case["zcdp_rdp_eps"]


# -- last iterate --------------------------------------------------------------------------------------------

CYCLIC = pytest.mark.parametrize("case", ORACLES["noisycgd"], ids=lambda c: f"k={c['k']},E={c['E']},c={c['c']}")


@CYCLIC
def test_noisy_cyclic_positions(case):
    positions = [0] if case["k"] == 1 else [0, case["k"] // 2, case["k"] - 1]
    found = [noisy_cyclic_mu(case["k"], case["E"], case["c"], case["d_over_s"], position=j) for j in positions]
    assert found == pytest.approx(case["mu_pos_first_mid_last"], rel=1e-6)


@CYCLIC
def test_noisy_cyclic_epsilon(case):
    k, E, r = case["k"], case["E"], case["d_over_s"]
    mu = noisy_cyclic_mu(k, E, case["c"], r)
    assert gdp_epsilon(mu, DELTA) == pytest.approx(case["eps_last"], rel=1e-6)
    assert gdp_epsilon(r * math.sqrt(E), DELTA) == pytest.approx(case["eps_composition"], rel=1e-6)


def theorem_28(k, E, c, d_over_s):
    """The convex ReLU paper, Theorem 2.8: L/(bσ) is the shift of a visit over the noise's deviation."""
    if c == 1:
        return d_over_s * math.sqrt(1 + (E - 1) / k)
    decay = c ** (k * (E - 1))
    extra = c ** (2 * k - 2) * (1 - c * c) / (1 - c**k) ** 2 * (1 - decay) / (1 + decay)
    return d_over_s * math.sqrt(1 + extra)


@CYCLIC
def test_theorem_28_of_the_oracle(case):
    assert theorem_28(case["k"], case["E"], case["c"], case["d_over_s"]) == pytest.approx(case["thm28"], rel=1e-9)


@pytest.mark.parametrize("k", [2, 3, 10, 60])
@pytest.mark.parametrize("E", [1, 2, 7, 50])
@pytest.mark.parametrize("c", [0.3, 0.9, 0.99, 0.9999])
def test_equals_theorem_28_for_several_batches(k, E, c):
    assert noisy_cyclic_mu(k, E, c, 0.7) == pytest.approx(theorem_28(k, E, c, 0.7), rel=1e-9)


@pytest.mark.parametrize("k", [2, 5])
def test_equals_the_limit_of_theorem_28_without_contraction(k):
    assert noisy_cyclic_mu(k, 20, 1.0, 0.7) == pytest.approx(theorem_28(k, 20, 1.0, 0.7), rel=1e-9)


@pytest.mark.parametrize("E", [2, 7, 50])
@pytest.mark.parametrize("c", [0.3, 0.9, 0.99])
def test_improves_theorem_28_for_one_batch(E, c):
    assert noisy_cyclic_mu(1, E, c, 0.7) < theorem_28(1, E, c, 0.7) * (1 - 1e-6)


@pytest.mark.parametrize("case", ORACLES["gcm_random"], ids=lambda c: f"t={len(c['c'])},mu={c['mu']:.3f}")
def test_random_chains(case):
    c, d, s = case["c"], case["d"], case["s"]
    assert last_iterate_mu(c, d, s) == pytest.approx(case["mu"], rel=1e-6)
    assert last_iterate_mu(c, d, s, diameter=case["D"]) == pytest.approx(case["mu_bounded"], rel=1e-6)
    assert case["mu_linear_slope_c"] <= last_iterate_mu(c, d, s) * (1 + 1e-9)


# -- published recursion -------------------------------------------------------------------------------------

MBCD_BATCHES = 25


@pytest.mark.parametrize("case", ORACLES["mbcd_recursion_fig1"], ids=lambda c: f"j0={c['j0']}")
def test_published_recursion_and_ours_beside_it(case):
    noise = np.full((case["K"], MBCD_BATCHES), case["o"])
    found = diffusion_rdp(case["LF"], case["eta"], noise, case["Sg"], case["b"], case["j0"])
    assert found == pytest.approx(case["R_over_alpha"], rel=1e-6)
    ratio = math.sqrt(case["eta"] * case["Sg"] ** 2 / (2 * case["b"] ** 2 * case["o"]))
    mu = noisy_cyclic_mu(MBCD_BATCHES, case["K"], case["LF"], ratio, position=case["j0"])
    assert mu**2 / 2 == pytest.approx(case["gcm_half_mu2"], rel=1e-6)
    assert mu**2 / 2 < found


# -- private selection ---------------------------------------------------------------------------------------

SELECTION = ORACLES["private_selection"][0]


def test_selection_base_is_a_gdp_mechanism():
    assert gdp_mu(SELECTION["base_eps"], DELTA) == pytest.approx(SELECTION["mu"], rel=1e-9)


def test_selection_theorem_51():
    found = selection_epsilon(SELECTION["mu"], SELECTION["m"], DELTA, method="theorem-5.1")
    assert found == pytest.approx(SELECTION["thm51"], rel=1e-6)


def test_selection_refined_lies_between_the_attack_and_theorem_51():
    found = selection_epsilon(SELECTION["mu"], SELECTION["m"], DELTA)
    assert found == pytest.approx(SELECTION["refined_upper"], abs=1e-6)
    assert SELECTION["attack_lower"] <= found < SELECTION["thm51"]
    assert SELECTION["paper"] < SELECTION["attack_lower"]


def test_selection_refined_for_the_larger_base():
    assert selection_epsilon(gdp_mu(4.76, DELTA), 20, DELTA) == pytest.approx(12.473386, rel=1e-6)


def renyi_delta(orders, divergence, epsilon):
    """dp_accounting's compute_delta for many ε at once."""
    r, e = divergence[:, None], epsilon[None, :]
    kl = 0.5 * np.log(-np.expm1(-r)) + 0 * e
    a = orders[:, None]
    bound = (a - 1) * (r - e + np.log1p(-1 / a)) - np.log(a)
    return np.exp(np.minimum(np.minimum(kl, np.where(a > 1.01, bound, np.inf)).min(axis=0), 0.0))


def test_selection_renyi_with_the_base_converted_through_renyi():
    from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

    orders = 1 + np.geomspace(1e-1, 1e3, 6000)
    line = orders * SELECTION["mu"] ** 2 / 2
    for epsilon in (0.01, 0.5, 2.0):
        ours = renyi_delta(orders, line, np.array([epsilon]))[0]
        assert ours == pytest.approx(compute_delta(orders, line, epsilon)[0], rel=1e-9)
    found = renyi_poisson_epsilon(
        SELECTION["mu"], SELECTION["m"], DELTA, base_delta=lambda hat: renyi_delta(orders, line, hat)
    )
    assert found == pytest.approx(SELECTION["rdp_papernot_steinke"], rel=1e-6)
    assert selection_epsilon(SELECTION["mu"], SELECTION["m"], DELTA, method="renyi") < found
