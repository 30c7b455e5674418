"""What the papers print for runs of ours: their recursions, never a promise of a certificate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from papers.published import claims, diffusion_rates, published_epsilon

from tacit import DPNMF, DPBlockMLPClassifier
from tacit.accounting import certify, gdp_epsilon
from tacit.errors import InvalidInput
from tacit.mechanism import BlockSweeps, Cyclic, FrozenArray, LastIterate, Mechanism, Poisson, Schedule
from tacit.problem.blocks import Block, GradientStep
from tacit.report.plan import make_report
from tacit.report.settings import Settings
from tacit.solvers.blocks import plan_blocks
from tacit.solvers.nmf import NMFOptions

DELTA = 1e-5
SMALL = Settings(n=600, batch=100, epochs=5, sigma=4.0, delta=DELTA, lr=0.1, l2=0.01, smoothness=0.5)
PAPER = Settings(n=60000, batch=1000, epochs=400, sigma=15.0, delta=DELTA, lr=0.1, l2=1e-3, smoothness=0.5)
RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (400, 3))
Y = (X[:, 0] > 0).astype(int)


def test_rates_by_hand():
    # v: 1, .25+1, …; step 1 holds the record, the others shrink by L²v/(L²v+1)
    c, gain, variance = np.full(4, 0.5), np.full(4, 0.3), np.ones(4)
    found = diffusion_rates(c, gain, variance, 2, 1)
    v1 = 0.25 + 1
    shrunk = 0.3 * (0.25 * v1) / (0.25 * v1 + 1)
    assert found.tolist() == pytest.approx([0.0, 0.3, shrunk, shrunk + 0.3])


# -- hidden chains ---------------------------------------------------------------------------------------------


def final(settings: Settings) -> tuple[Mechanism, float]:
    """The last-iterate row of ``tacit plan``: its mechanism and ε."""
    (row,) = [row for row in make_report(settings).rows if row.method.id == "cyclic-final"]
    (mechanism,) = row.certificate.plan
    return mechanism, row.epsilon


def test_the_figure_of_the_readme():
    mechanism, ours = final(PAPER)
    assert published_epsilon(mechanism, DELTA) == pytest.approx(5.8702, abs=1e-4)
    assert ours == pytest.approx(1.1963, abs=1e-4)


@pytest.mark.parametrize("lr", [0.5, 3.9, 4.0, 4.2, 6.0, 100.0])
def test_ours_never_exceeds_the_recursion_even_where_steps_expand(lr):
    mechanism, ours = final(SMALL.replace(lr=lr, epochs=40))
    assert published_epsilon(mechanism, DELTA) >= ours


def test_the_recursion_never_overflows_into_a_promise():
    """Breaker's A12: c² = ∞ gave NaN, and NaN gave ε = 0."""
    view = LastIterate(lipschitz=Schedule.constant(1e160, 40), noise_std=Schedule.constant(1.0, 40))
    m = Mechanism(adjacency="replace-one", ratio=1.0, steps=40, sampling=Cyclic(2), view=view)
    ours = certify(m, theorem="last-iterate").epsilon(DELTA)
    assert published_epsilon(m, DELTA) >= ours * (1 - 1e-9) > 4
    mechanism, _ = final(SMALL.replace(lr=100.0, epochs=400))
    assert published_epsilon(mechanism, DELTA) > 4


def test_it_says_nothing_about_other_runs():
    for change in ({"sampling": Poisson(0.5)}, {"sampling": Cyclic(2)}):  # every iterate is seen, nothing is claimed
        assert published_epsilon(Mechanism(adjacency="replace-one", ratio=1.0, steps=4, **change), DELTA) is None
    silent = LastIterate(lipschitz=Schedule.constant(0.9, 4), noise_std=Schedule([1.0, 0.0, 1.0, 1.0]))
    gap = Mechanism(adjacency="replace-one", ratio=[1.0, 0.0, 1.0, 1.0], steps=4, view=silent)
    assert published_epsilon(gap, DELTA) is None
    with pytest.raises(InvalidInput, match="delta"):
        published_epsilon(final(SMALL)[0], 0.0)


# -- blocks ----------------------------------------------------------------------------------------------------


def planned(**change):
    pair = (Block("a", np.zeros(2), 1.5, GradientStep(0.5)), Block("b", np.zeros(1), 0.5, GradientStep(0.5)))
    return plan_blocks(2.0, DELTA, **{"blocks": pair, "n": 12, "batch_size": 4, "epochs": 5, **change})


def test_claims_of_blocks_give_less_than_the_certificate():
    plan = planned()
    assert 0 < published_epsilon(plan.mechanism, DELTA, [0.4, 0.7]) < plan.certificate.epsilon(DELTA)
    per_step = [np.full(15, 0.4), np.full(15, 0.7)]
    same = published_epsilon(plan.mechanism, DELTA, per_step)
    assert same == published_epsilon(plan.mechanism, DELTA, [0.4, 0.7])
    assert published_epsilon(plan.mechanism, DELTA) is None
    assert published_epsilon(planned(sampling="poisson").mechanism, DELTA, [0.4, 0.7]) is None


@pytest.mark.parametrize("bad", [[0.4], [0.4, -0.7], [0.4, [0.7, 0.7]], [0.4, 0.5, 0.6], [0.4, math.nan]])
def test_claims_that_do_not_fit_are_refused(bad):
    with pytest.raises(InvalidInput, match="contractions"):
        published_epsilon(planned().mechanism, DELTA, bad)


def test_the_figure_is_that_of_the_same_blocks_under_the_papers_view():
    """The two-block example of errata E6: claimed Σμ² = 2.34 where 6.63 or 34.2 is true."""
    common = {"adjacency": "zero-out", "ratio": 1.0, "steps": 1000, "releases": 2, "sampling": Cyclic(2)}
    view = BlockSweeps(coupling=FrozenArray([[0.1, 0.65], [0.65, 0.5]]), noise_std=FrozenArray([1.0, 1.0]))
    hidden, seen = Mechanism(**common, view=view), Mechanism(**common)
    found = published_epsilon(seen, DELTA, [0.1, 0.5])
    assert found == pytest.approx(published_epsilon(hidden, DELTA), rel=1e-12)
    assert found < gdp_epsilon(math.sqrt(6.63), DELTA) < certify(seen).epsilon(DELTA)


# -- what the paper claims about models of ours -----------------------------------------------------------------


@pytest.mark.parametrize("update", ["gradient", "residuals", "statistics"])
@pytest.mark.parametrize("batch", [None, 100])
def test_factorisations_by_gradients_have_a_claim(update, batch):
    step = {"options": NMFOptions(step_size=0.25)} if update == "gradient" else {}
    common = {"epsilon": 1.0, "delta": DELTA, "row_norm": 2.0, "epochs": 6, "batch_size": batch, "random_state": 0}
    model = DPNMF(2, update=update, **step, **common).fit(np.abs(X))
    if update != "gradient":
        assert claims(model.plan_) is None
        return
    assert claims(model.plan_) == [0.75]
    found = published_epsilon(model.plan_.mechanism, DELTA, claims(model.plan_))
    assert found > 0
    assert batch is None or found < model.certificate_.epsilon(DELTA)


def test_networks_by_gradients_have_a_claim():
    common = {"epsilon": 2.0, "delta": DELTA, "feature_bounds": (-1, 1), "epochs": 15, "batch_size": 40}
    model = DPBlockMLPClassifier((8, 8), **common, sampling="cyclic", random_state=0).fit(X, Y)
    plan, network = model.plan_, model.network_
    stated = claims(plan, network)
    assert [one.shape for one in stated] == [(plan.steps,)] * 3
    for one, block, connection in zip(stated, plan.blocks, network.connections, strict=True):
        assert one.max() <= 1
        half = 0.5 if connection.target == network.depth else 1.0  # cross-entropy
        for t in (0, plan.steps - 1):
            way = block.update.step_size.at(t, plan.steps) * half * network.design_norm(connection) ** 2
            assert one[t] == min(1.0, abs(1 - way))
    assert published_epsilon(plan.mechanism, DELTA, stated) < 2.0
    other = DPBlockMLPClassifier((8,), **common, update="statistics", random_state=0).fit(X, Y)
    assert claims(other.plan_, other.network_) is None
    poisson = DPBlockMLPClassifier((8,), **common, sampling="poisson", random_state=0).fit(X, Y)
    assert published_epsilon(poisson.plan_.mechanism, DELTA, claims(poisson.plan_, poisson.network_)) is None
