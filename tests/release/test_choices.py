"""Noisy choices: what a record moves a score by, laws of neighbours in fractions, counts, names of noise, mutants."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from contracts import made, nothing_escapes

from tacit import Ledger
from tacit.accounting import bounded_range_mu, certify
from tacit.audit import audit_gdp
from tacit.errors import BudgetExhausted, InvalidInput, MechanismMismatch
from tacit.mechanism import Adjacency, Mechanism, NoisyMax, Plan
from tacit.problem import ElasticNet, Logistic, Poisson, Squared
from tacit.records import InMemory, Rows
from tacit.release import CHOICES, Choice, open_session
from tacit.release import choice as module
from tacit.release.choice import integer_scores
from tacit.release.queries import BoundedSum, CoordinateScores, One

NAMES = sorted(name for name, cls in CHOICES.items() if cls.__module__.startswith("tacit."))
EACH = pytest.mark.parametrize("name", NAMES)
RELATIONS = pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
ETAS = (0.01, 0.7, 6.0)


def example(name, rng, records=5):
    cls = CHOICES[name]
    return made(cls, lambda: cls.example(rng, records=records), "example(cls, rng, records) must return an Example")


def sums(choice, rows, state, members=None, grid=None):
    members = np.ones((1, len(rows)), bool) if members is None else members
    return choice.total(rows, state, members, grid)[0]


def pairs(name, adjacency, count=200):
    """Examples with the sums of neighbours, on a grid and in floating point."""
    rng = np.random.default_rng(0)
    others = np.array([[False, True, True, True, True]])
    for _ in range(count):
        choice, here, there, state = example(name, rng)
        grid = choice.grid()
        if adjacency is Adjacency.REPLACE_ONE:
            yield (
                choice,
                state,
                [(sums(choice, here, state, None, g), sums(choice, there, state, None, g)) for g in (grid, None)],
            )
        else:
            yield (
                choice,
                state,
                [(sums(choice, here, state, None, g), sums(choice, here, state, others, g)) for g in (grid, None)],
            )


@RELATIONS
@EACH
def test_no_score_moves_further_than_its_sum_and_some_get_there(name, adjacency):
    worst_sum = worst_score = 0.0
    for choice, state, found in pairs(name, adjacency):
        reach = adjacency.sum_factor * choice.bound
        for unit, (a, b) in zip((choice.grid().unit, 1.0), found, strict=True):
            moved = np.abs(a - b) * unit
            assert moved.max() <= reach * (1 if unit < 1 else 1 + 1e-12)  # integers: without a tolerance
            scores = np.abs(choice.scores(a * unit, state[0]) - choice.scores(b * unit, state[0]))
            assert (scores <= moved + 2 * choice.rounding_error(state[0])).all()
            worst_sum, worst_score = max(worst_sum, moved.max() / reach), max(worst_score, scores.max() / reach)
    assert worst_sum >= 0.99
    assert worst_score >= 0.99


@RELATIONS
@EACH
def test_laws_of_neighbours_have_a_bounded_range(name, adjacency):
    """log P/P′ over all candidates, by mpmath, within an interval of length η; and nearly that long somewhere."""
    widest = 0.0
    for i, (choice, state, found) in enumerate(pairs(name, adjacency)):
        eta, reach = ETAS[i % 3], adjacency.sum_factor * choice.bound
        (k, kappa), (k2, kappa2) = (
            integer_scores(choice.scores(a * choice.grid().unit, state[0]), choice.rounding_error(state[0]), reach, eta)
            for a in found[0]
        )
        assert kappa == kappa2
        spread = max(map(int, k - k2)) - min(map(int, k - k2))
        assert Fraction(kappa) * spread <= Fraction(eta)
        with mpmath.workdps(60):
            logs = [mpmath.mpf(kappa) * int(a - b) for a, b in zip(k, k2, strict=True)]
            assert max(logs) - min(logs) <= eta  # the normalisers cancel
        widest = max(widest, float(kappa) * spread / eta)
    assert widest >= 0.99


@EACH
def test_no_order_and_no_partition_changes_a_bit(name):
    rng = np.random.default_rng(7)
    for _ in range(15):
        n = int(rng.integers(1, 40))
        choice, rows, _, state = example(name, rng, n)
        grid = choice.grid()
        whole = sums(choice, rows, state, None, grid)
        assert whole.dtype == np.int64
        cuts = [cut for cut in np.array_split(rng.permutation(n), int(rng.integers(1, n + 1))) if len(cut)]
        np.testing.assert_array_equal(
            np.sum([sums(choice, rows.take(c), state, None, grid) for c in cuts], axis=0), whole
        )
        masks = [np.isin(np.arange(n), cut)[None] for cut in cuts]
        np.testing.assert_array_equal(np.sum([sums(choice, rows, state, m, grid) for m in masks], axis=0), whole)


@EACH
def test_weights_multiply_what_a_row_contributes(name):
    rng = np.random.default_rng(8)
    for _ in range(15):
        choice, rows, _, state = example(name, rng, 6)
        grid, weights = choice.grid(), rng.uniform(0, 1, (1, 6)) * rng.choice([0.0, 1.0], (1, 6))
        alone = [sums(choice, rows, state, np.eye(6, dtype=bool)[[i]], grid) for i in range(6)]
        found = sums(choice, rows, state, weights, grid)
        wanted = sum(w * one for w, one in zip(weights[0], alone, strict=True))
        np.testing.assert_allclose(found, wanted, atol=12)  # each rounded toward zero, once before and once after
        np.testing.assert_allclose(found * grid.unit, sums(choice, rows, state, weights), atol=1e-4)


def test_every_choice_is_replayed():
    nothing_escapes(Choice, set(CHOICES.values()), "give it a name of its own, name = 'columns'")
    with pytest.raises(InvalidInput, match="states no name"):
        type("Nameless", (CoordinateScores,), {})


# -- the scores of coordinates ---------------------------------------------------------------------------------------


def exact_score(choice, j, w, q, step):
    """|P(W − G) − W| of coordinate j in fractions, with the public numbers that float64 makes."""
    W, l1, shrink, low, high = (part[j] for part in choice._public(w))
    W, G = Fraction(W), Fraction(int(q[j])) * Fraction(step)
    G = max(min(G, Fraction(2 * choice.divisor)), -Fraction(2 * choice.divisor))
    v = W - G
    v = (v - max(min(v, Fraction(l1)), -Fraction(l1))) / Fraction(shrink)
    v = v if low == -np.inf else max(v, Fraction(low))
    v = v if high == np.inf else min(v, Fraction(high))
    return abs(v - W)


def test_floats_stay_within_the_stated_error():
    """Steps, penalties, boxes and coefficients over many orders of magnitude; the bound is used, too."""
    rng, largest = np.random.default_rng(3), 0.0
    for _ in range(400):
        p, n = 5, int(10.0 ** rng.uniform(1, 7))
        low = rng.choice([-np.inf, -0.5, 0.2])
        penalty = ElasticNet.of(p, l1=10.0 ** rng.uniform(-6, 1), l2=rng.choice([0.0, 0.3]), low=low, high=np.inf)
        clips, M = 10.0 ** rng.uniform(-4, 1, p), 10.0 ** rng.uniform(-4, 1, p)
        choice = CoordinateScores(Squared(), penalty, clips, M, n)
        w, step = rng.normal(size=p) * 10.0 ** rng.uniform(-3, 6), choice.grid().unit
        q = (rng.uniform(-1, 1, p) * n / step).astype(np.int64)
        error = choice.rounding_error(w)
        found = choice.scores(q * step, w)
        for j in range(p):
            off = abs(Fraction(found[j]) - exact_score(choice, j, w, q, step))
            assert off <= Fraction(error)
            largest = max(largest, float(off / Fraction(error)))
    assert largest > 0.05


def test_scores_are_the_length_of_a_proximal_step():
    rng = np.random.default_rng(4)
    penalty = ElasticNet.of(4, l1=0.1, l2=0.2, high=0.4)
    M, C, n = np.array([1.0, 2.0, 0.5, 4.0]), 0.7, 50
    choice = CoordinateScores(Logistic(), penalty, C * np.sqrt(M), M, n)
    w, g = rng.normal(size=4), rng.normal(size=4) * 0.3
    expected = n / C * np.sqrt(M) * np.abs(penalty.prox(w - g / M, 1 / M) - w)
    np.testing.assert_allclose(choice.scores(n * g / (C * np.sqrt(M)), w), expected, rtol=1e-12)

    class Same(ElasticNet):
        pass

    other = replace(choice, penalty=Same(penalty.l1, penalty.l2, penalty.low, penalty.high))
    np.testing.assert_allclose(other.scores(n * g / (C * np.sqrt(M)), w), expected, rtol=1e-12)
    with pytest.raises(MechanismMismatch, match="arithmetic='float'"):
        other.rounding_error(w)


def test_losses_without_compiled_code_are_scored_alike():
    """A subclass runs its own derivative in numpy: the same sums."""

    class Mine(Logistic):
        name = "test-mine"

        def derivative(self, f, y):
            return super().derivative(f, y)

    rng = np.random.default_rng(5)
    rows = Rows(rng.normal(size=(30, 3)), rng.choice([-1.0, 1.0], 30))
    args = ElasticNet.of(3), np.full(3, 0.4), np.ones(3), 30
    w = rng.normal(size=(1, 3))
    a, b = (sums(CoordinateScores(loss, *args), rows, w) for loss in (Logistic(), Mine()))
    np.testing.assert_allclose(a, b, rtol=1e-9)
    assert np.isfinite(sums(CoordinateScores(Poisson(), *args), rows, w)).all()


def test_an_overflow_makes_all_candidates_alike():
    choice = CoordinateScores(Squared(), ElasticNet.of(2), np.full(2, 1e-300), np.full(2, 1e300), 10)
    error = choice.rounding_error(np.array([1e150, 0.0]))
    assert error == np.inf
    with np.errstate(all="ignore"):
        k, kappa = integer_scores(choice.scores(np.ones(2), np.array([1e150, 0.0])), error, 2.0, 1.0)
    assert (k.tolist(), kappa) == ([0, 0], 0.0)


# -- sessions ----------------------------------------------------------------------------------------------


def scores_of(n, p=3):
    return CoordinateScores(Squared(), ElasticNet.of(p), np.full(p, 0.5), np.ones(p), n)


def plan(steps=2, arithmetic="exact", eta=1.0):
    part = NoisyMax(adjacency="replace-one", bounded_range=eta, steps=steps, arithmetic=arithmetic)
    return Plan.of(Mechanism(adjacency="replace-one", ratio=0.5, steps=1, arithmetic=arithmetic), part)


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return rng.normal(size=(20, 3)), rng.normal(size=20)


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_as_many_choices_as_are_certified_and_not_one_more(arithmetic, table, opened):
    session = opened(certify(plan(2, arithmetic)), *table)
    assert session.steps_left(1) == 2
    for left in (1, 0):
        assert 0 <= session.select(scores_of(20), np.zeros(3), part=1) < 3
        assert session.steps_left(1) == left
    with pytest.raises(BudgetExhausted, match="all 2 certified choices"):
        session.select(scores_of(20), np.zeros(3), part=1)


def test_what_does_not_fit_is_refused(table, opened):
    session = opened(certify(plan()), *table)
    with pytest.raises(MechanismMismatch, match=r"session\.select"):
        session.release(BoundedSum(One()), part=1)
    with pytest.raises(MechanismMismatch, match=r"session\.release"):
        session.select(scores_of(20), np.zeros(3), part=0)
    with pytest.raises(MechanismMismatch, match="not a registered choice"):
        session.select(type("_Mine", (CoordinateScores,), {})(*vars(scores_of(20)).values()), np.zeros(3), part=1)

    class Other(ElasticNet):
        pass

    parts = scores_of(20).penalty
    odd = replace(scores_of(20), penalty=Other(parts.l1, parts.l2, parts.low, parts.high))
    with pytest.raises(MechanismMismatch, match="rounding"):
        session.select(odd, np.zeros(3), part=1)
    assert session.steps_left(1) == 2  # nothing was read or counted


def test_a_closed_session_and_replicas_are_refused(table):
    with open_session(certify(plan()), InMemory(*table)) as session:
        pass
    with pytest.raises(MechanismMismatch, match="closed"):
        session.select(scores_of(20), np.zeros(3), part=1)
    with open_session(certify(plan()), InMemory(*table), replicas=2) as session, pytest.raises(MechanismMismatch):
        session.select(scores_of(20), np.zeros(3), part=1)


def test_the_ledger_is_charged_for_choices(table, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon=10.0, delta=1e-5)
    certificate = certify(plan(), delta=1e-6)
    with open_session(certificate, InMemory(*table), ledger=ledger) as session:
        assert session.entry is not None
    assert certificate.mu == pytest.approx((0.25 + 2 * bounded_range_mu(1.0) ** 2) ** 0.5, rel=1e-12)
    again = type(certificate).from_json(certificate.to_json())
    assert again == certificate
    assert "Gumbel" in certificate.describe()


def words(monkeypatch):
    """The first word of every choice's noise."""
    seen: list[int] = []
    right = module.exact_softmax

    def draw(rng, scores, scale):
        seen.append(_first(rng))
        return right(rng, scores, scale)

    monkeypatch.setattr(module, "exact_softmax", draw)
    return seen


def _first(rng) -> int:
    state = rng.bit_generator.state
    word = int(rng.integers(2**64 - 1, dtype=np.uint64, endpoint=True))
    rng.bit_generator.state = state
    return word


def test_noise_is_named_after_the_scores_that_it_hides(table, monkeypatch):
    """A seeded run that is repeated makes the same choices; other scores, or another history, have other noise."""
    seen = words(monkeypatch)
    X, y = table
    moved = y.copy()
    moved[0] += 1e-3

    def run(y, w):
        with open_session(certify(plan(3)), InMemory(X, y), random_state=3) as session:
            return [session.select(scores_of(20), np.array(w) * t, part=1) for t in (0, 1, 0)]

    first = run(y, [0.1, 0.0, 0.0])
    assert run(y, [0.1, 0.0, 0.0]) == first
    assert seen[:3] == seen[3:6]
    assert len(set(seen)) == 3  # also the third, of the same scores as the first
    run(moved, [0.1, 0.0, 0.0])
    assert not set(seen[6:]) & set(seen[:3])
    run(y, [0.2, 0.0, 0.0])
    assert seen[9] == seen[0]
    assert not set(seen[10:]) & set(seen[:3])  # history differs from the second choice on


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_the_law_of_a_session_is_the_exponential_mechanism(arithmetic, table):
    X, y = table
    certificate, choice = certify(plan(400, arithmetic)), scores_of(20)
    s = choice.scores(sums(choice, Rows(X, y), np.zeros((1, 3))), np.zeros(3))
    expected = np.exp((s - s.max()) / 4)  # η = 1, Δ = 2
    expected *= 400 / expected.sum()
    with open_session(certificate, InMemory(X, y), random_state=1) as session:
        found = np.bincount([session.select(choice, np.zeros(3), part=1) for _ in range(400)], minlength=3)
    assert ((found - expected) ** 2 / expected).sum() < 18


# -- mutants ----------------------------------------------------------------------------------------------


def widest_range(name="coordinate-scores", etas=ETAS):
    """The largest range of the log-ratio over η, of laws of neighbours."""
    found = []
    for i, (choice, state, sums_of) in enumerate(pairs(name, Adjacency.REPLACE_ONE)):
        eta = etas[i % 3]
        (k, kappa), (k2, _) = (
            module.integer_scores(
                choice.scores(a * choice.grid().unit, state[0]), choice.rounding_error(state[0]), 2.0, eta
            )
            for a in sums_of[0]
        )
        found.append(kappa * (max(map(int, k - k2)) - min(map(int, k - k2))) / eta)
    return max(found)


def test_noise_too_small_by_two_is_noticed(monkeypatch):
    right = module.integer_scores
    assert widest_range() <= 1
    monkeypatch.setattr(module, "integer_scores", lambda s, e, reach, eta: right(s, e, reach / 2, eta))
    assert widest_range() > 1.9


def test_rounded_scores_without_their_slack_are_noticed(monkeypatch):
    """On a coarse grid: neighbours' scores 2 apart are rounded to integers more than 2 apart."""
    monkeypatch.setattr(module, "SCORE_BITS", 0)
    assert widest_range() <= 1  # the slack pays for any grid
    right = module.integer_scores

    def careless(scores, error, reach, eta):
        k, _ = right(scores, error, reach, eta)
        return k, eta * 2.0 ** (module.exponent(reach) - module.SCORE_BITS) / (2 * reach)

    monkeypatch.setattr(module, "integer_scores", careless)
    rng = np.random.default_rng(0)
    ranges = []
    for _ in range(2000):  # scores that move by the whole of Δ, in both directions
        s = rng.uniform(0, 20, 3)
        k, kappa = module.integer_scores(s, 0.0, 1.5, 1.0)
        k2, _ = module.integer_scores(s + rng.choice([-1.5, 1.5], 3), 0.0, 1.5, 1.0)
        ranges.append(kappa * (int((k - k2).max()) - int((k - k2).min())))
    assert max(ranges) > 1.2


def one_choice_only(table):
    with open_session(certify(plan(1)), InMemory(*table)) as session:
        session.select(scores_of(20), np.zeros(3), part=1)
        with pytest.raises(BudgetExhausted):
            session.select(scores_of(20), np.zeros(3), part=1)


def test_a_choice_that_is_not_counted_is_noticed(table, monkeypatch):
    one_choice_only(table)
    right = module.ChoiceChannel.select

    def uncounted(self, *a):
        before = self._step
        found = right(self, *a)
        self._step = before
        return found

    monkeypatch.setattr(module.ChoiceChannel, "select", uncounted)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        one_choice_only(table)


# -- audits ----------------------------------------------------------------------------------------------


def audited(runs=1500, steps=8, eta=0.8):
    """Neighbours whose one record moves two scores by the whole of Δ, in opposite directions; who is chosen is told."""
    X, y = np.ones((11, 2)), np.full(11, -9.0)
    certificate, choice = certify(plan(steps, "exact", eta)), scores_of(11, 2)

    def chosen(sign, seed):
        here = X.copy()
        here[0] = sign, -sign
        with open_session(certificate, InMemory(here, y), random_state=seed) as session:
            return sum(session.select(choice, np.zeros(2), part=1) for _ in range(steps))

    def sampler(sign, first):
        return lambda k: np.array([chosen(sign, first + i) for i in range(k)], float)

    found = audit_gdp(sampler(1.0, 10**6), sampler(-1.0, 2 * 10**6), runs)
    alone = certify(certificate.plan.parts[1])
    return found, alone


def test_choices_stay_below_their_certificate_and_come_near():
    found, certificate = audited()
    assert not found.verdict(certificate).violated
    assert found.mu_lower >= 0.65 * certificate.mu


def test_an_audit_catches_noise_that_is_too_small_by_two(monkeypatch):
    right = module.integer_scores
    monkeypatch.setattr(module, "integer_scores", lambda s, e, reach, eta: right(s, e, reach / 2, eta))
    found, certificate = audited()
    assert found.verdict(certificate).violated
