"""Composition of unlike curves, and that a plan is never charged more than its best theorem."""

import math
import pickle

import pytest

from tacit.accounting import Certificate, Gaussian, Profile, certify, compose, gdp_delta, gdp_epsilon, poisson_epsilon
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.mechanism import (
    Cyclic,
    Evidence,
    LastIterate,
    Mechanism,
    Partition,
    Plan,
    Poisson,
    Schedule,
    Selection,
    Separated,
    Trials,
)

DELTA = 1e-5


def secret_chain(ratio=0.1):
    view = LastIterate(lipschitz=Schedule.constant(0.9, 20), noise_std=Schedule.constant(1.0, 20))
    return Mechanism(adjacency="replace-one", ratio=ratio, steps=20, sampling=Cyclic(4, Partition.SECRET), view=view)


@pytest.mark.parametrize("parts", [1, 2, 4, 5, 6, 9])
def test_a_plan_is_never_charged_more_than_one_theorem_for_all_parts(parts):
    plan = Plan.of(*[secret_chain()] * parts)
    alone = certify(plan, delta=DELTA, theorem="last-iterate")
    assert certify(plan, delta=DELTA).epsilon(DELTA) <= alone.epsilon(DELTA) * (1 + 1e-9)
    assert certify(plan).mu == pytest.approx(alone.mu)


def test_gaussians_compose_exactly():
    assert compose([Gaussian(3.0), Gaussian(4.0)]) == Gaussian(5.0)
    assert compose([Gaussian(0.0)]).epsilon(DELTA) == 0.0


def test_profiles_add_through_points():
    one = Profile(lambda e: gdp_delta(0.5, e))
    both = compose([one, one])
    exact = gdp_epsilon(0.5 * math.sqrt(2), DELTA)
    assert exact <= both.epsilon(DELTA) <= 2 * gdp_epsilon(0.5, DELTA / 2) * (1 + 1e-9)
    assert both.delta(both.epsilon(DELTA)) <= DELTA * (1 + 1e-5)


def test_a_profile_inverts_its_delta():
    curve = Profile(lambda e: gdp_delta(1.0, e))
    assert curve.epsilon(DELTA) == pytest.approx(gdp_epsilon(1.0, DELTA), rel=1e-8)
    assert curve.delta(curve.epsilon(DELTA)) <= DELTA


def test_order_does_not_matter():
    a = Mechanism(adjacency="zero-out", ratio=0.4, steps=3)
    b = Mechanism(adjacency="zero-out", ratio=0.5, steps=5, sampling=Poisson(0.3))
    assert certify(Plan.of(a, b)).epsilon(DELTA) == pytest.approx(certify(Plan.of(b, a)).epsilon(DELTA), rel=1e-9)
    assert (certify(a) + certify(b)).epsilon(DELTA) == pytest.approx(certify(Plan.of(a, b)).epsilon(DELTA), rel=1e-9)


def test_selection_with_a_disjoint_holdout_costs_the_larger_of_the_two():
    train = Mechanism(adjacency="replace-one", ratio=0.3, steps=1)
    score = Mechanism(adjacency="replace-one", ratio=0.2, steps=1)
    alone = certify(Selection(base=(train,), trials=Trials(5))).epsilon(DELTA)
    held = certify(Selection(base=(train,), trials=Trials(5), holdout=(score,))).epsilon(DELTA)
    both = certify(Selection(base=(train, score), trials=Trials(5))).epsilon(DELTA)
    assert held == pytest.approx(alone, rel=1e-9)
    assert both > held


def test_selection_costs_more_with_more_trials_and_at_least_one_candidate():
    base = Mechanism(adjacency="replace-one", ratio=0.3, steps=1)
    costs = [certify(Selection(base=(base,), trials=Trials(m))).epsilon(DELTA) for m in (1, 5, 20)]
    assert certify(base).epsilon(DELTA) < costs[0] < costs[1] < costs[2]


def test_selection_over_sampled_candidates_uses_theorem_51():
    base = Mechanism(adjacency="zero-out", ratio=0.3, steps=5, sampling=Poisson(0.3))
    certificate = certify(Selection(base=(base,), trials=Trials(5)), delta=1e-3)
    assert certificate.theorems[0].id == "selection-5.1"
    assert certificate.epsilon(1e-3) > poisson_epsilon(1 / 0.3, 0.3, 5, 1e-3, adjacency="zero-out")


def test_truncated_trials_go_through_renyi():
    base = Mechanism(adjacency="replace-one", ratio=0.3, steps=1)
    certificate = certify(Selection(base=(base,), trials=Trials(5.0, 1.0)))
    assert certificate.theorems[0].id == "selection-renyi"
    assert certificate.epsilon(DELTA) > certify(base).epsilon(DELTA)


def hidden_chain(steps: int = 50, c: float = 0.5) -> Mechanism:
    view = LastIterate(lipschitz=Schedule.constant(c, steps), noise_std=Schedule.constant(1.0, steps))
    return Mechanism(adjacency="replace-one", ratio=1.0, steps=steps, view=view)


def test_a_chosen_theorem_stays_chosen():
    """Breaker's A10: a certificate for every iterate must not become one for the final model by being copied."""
    chosen = certify(hidden_chain(), theorem="gaussian-composition")
    assert chosen.view == "every iterate"
    copies = [pickle.loads(pickle.dumps(chosen)), Certificate.from_json(chosen.to_json()), chosen.marked("a mark")]
    assert all(copy.mu == chosen.mu and copy.view == "every iterate" for copy in copies)
    assert (chosen + chosen).mu == pytest.approx(chosen.mu * 2**0.5)
    assert certify(hidden_chain()) != chosen
    assert certify(hidden_chain()).digest != chosen.digest


def test_edited_marks_and_evidence_are_noticed():
    """Breaker's A13."""
    text = certify(hidden_chain()).marked("not private: seeded").to_json()
    for old, new in (("not private: seeded", "fine"), ("DECLARED", "ENFORCED")):
        assert old in text
        with pytest.raises(MechanismMismatch):
            Certificate.from_json(text.replace(old, new))


def test_what_no_code_of_ours_does_is_declared():
    """An assumption is enforced only if something here enforces it."""
    bounded = LastIterate(lipschitz=Schedule.constant(0.9, 20), noise_std=Schedule.constant(1.0, 20), diameter=1.0)
    cases = {
        "diameter": Mechanism(adjacency="replace-one", ratio=0.1, steps=20, view=bounded),
        "far apart": Mechanism(adjacency="replace-one", ratio=0.1, steps=20, sampling=Separated(5, 2)),
        "stay secret": Selection(base=(hidden_chain(),), trials=Trials(5)),
    }
    for word, part in cases.items():
        (found,) = [a for a in certify(part).assumptions if word in a.text]
        assert found.evidence is Evidence.DECLARED


def test_a_selection_refuses_a_theorem_that_is_none_of_its_own():
    with pytest.raises(InvalidInput, match="selection"):
        certify(Selection(base=(hidden_chain(),), trials=Trials(5)), theorem="last-iterate")


def test_what_no_program_can_see_is_declared():
    """Settings chosen by looking at records, and (final model) the duration: nobody enforces these."""
    for mechanism in (Mechanism(adjacency="replace-one", ratio=0.5, steps=4), hidden_chain()):
        text = certify(mechanism).describe()
        assert "were not chosen by looking at the records [declared]" in text
        assert "Enforced means by Tacit's own code where that is what runs" in text
    assert "how long the run takes [declared]" in text
    assert "duration [enforced]" not in text
