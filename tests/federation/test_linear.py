"""Linear models over several owners find what one table finds, and nodes answer what they know and nothing else."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tacit import (
    DPElasticNet,
    DPLogisticRegression,
    DPPoissonRegressor,
    DPRidge,
    Ledger,
    NotCovered,
    _codec,
)
from tacit.accounting import Certificate, certify, gdp_epsilon, gdp_mu
from tacit.errors import InvalidInput
from tacit.estimators.files import load_model, save_model
from tacit.federation import FederatedLinear, FederationError, LinearNode, LinkLost, threaded_nodes
from tacit.federation.desk import Desk
from tacit.federation.linear_node import LinearProposal, check_parts
from tacit.federation.questions import QUERIES, Ask, Words, read_features, read_query, read_target, write
from tacit.federation.wire import decode, encode
from tacit.maps import AffineTarget, FeatureBounds, Linear, Standardise, TargetBounds
from tacit.mechanism import Adjacency, Mechanism, Plan, Schedule
from tacit.mechanism import Arithmetic as Numbers
from tacit.problem import Huber, Logistic
from tacit.records import InMemory, Persons
from tacit.release import SEEDED, channel, noise_std, open_session, sensitivity
from tacit.release.queries import (
    AtMost,
    BoundedSum,
    Curvature,
    GramSum,
    LossGradient,
    MomentSum,
    SlopeNorm,
    SquaredSlope,
    SquareSum,
    TargetDistance,
    TargetShare,
)
from tacit.solvers import NoisyGradientDescent

LOUD = 1e12


@_codec.described("test.OwnSolver")
@dataclasses.dataclass(frozen=True)
class _Own(NoisyGradientDescent):
    """A solver of somebody's own."""

    name = "own-over-owners"


TERMS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
SIZES = (900, 600)


def table(n: int = 1500, p: int = 3, seed: int = 0) -> Any:
    X = np.random.default_rng(seed).uniform(-1, 1, (n, p))
    return X, X @ np.arange(1.0, p + 1)


def nodes(X: Any, y: Any, sizes: Any = SIZES, **terms: Any) -> list[LinearNode]:
    cuts = np.cumsum(sizes)[:-1]
    parts = zip(np.split(X, cuts), np.split(y, cuts), strict=True)
    return [LinearNode(a, b, **{**TERMS, **terms}) for a, b in parts]


def fit(estimator: Any, given: list[LinearNode], **settings: Any) -> Any:
    with threaded_nodes(given) as links:
        return FederatedLinear(estimator, **{"timeout": 30.0, **settings}).fit(links)


CASES: dict[str, Any] = {
    "metric": (DPLogisticRegression(feature_bounds=(-1, 1), solver="metric"), "labels"),
    "gradient": (DPLogisticRegression(feature_bounds=(-1, 1), solver="gradient"), "labels"),
    "constant": (DPLogisticRegression(feature_bounds=(-1, 1), solver="constant"), "labels"),
    "three classes": (DPLogisticRegression(feature_bounds=(-1, 1)), "three"),
    "ridge": (DPRidge(feature_bounds=(-1, 1), target_bounds=(-6, 6)), "numbers"),
    "lasso": (DPElasticNet(feature_bounds=(-1, 1), target_bounds=(-6, 6), l1_ratio=0.5), "numbers"),
    "no intercept": (DPRidge(feature_bounds=(-1, 1), target_bounds=(-6, 6), fit_intercept=False), "numbers"),
    "counts": (DPPoissonRegressor(feature_bounds=(-1, 1), target_bounds=(0, 9)), "counts"),
}


def targets(kind: str, f: Any) -> tuple[Any, Any]:
    if kind == "labels":
        return np.where(f > 0, "yes", "no"), ["no", "yes"]
    if kind == "three":
        return np.digitize(f, [-1, 1]), [0, 1, 2]
    return (np.floor(np.exp(f / 2)) if kind == "counts" else f), None


@pytest.mark.parametrize("name", list(CASES))
def test_without_noise_a_federation_finds_what_one_table_finds(name: str) -> None:
    estimator, kind = CASES[name]
    X, f = table()
    y, classes = targets(kind, f)
    model = fit(estimator, nodes(X, y, classes=classes, epsilon=LOUD))
    plain = type(estimator)(**{**estimator.get_params(), "epsilon": LOUD, "delta": 1e-6}).fit(X, y)
    # the two nodes together have 1/√2 of the budget of one table with all rows: settings differ in the last digits
    assert np.allclose(model.predict(X) == y, plain.predict(X) == y) or np.allclose(
        model.predict(X), plain.predict(X), rtol=2e-2, atol=2e-2
    )
    assert model.coef_.shape == plain.coef_.shape
    assert model.solver_ == plain.solver_


def test_two_owners_make_one_fit_with_the_noise_of_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the noise taken off: sums over owners are those of one table, but for the lattices to which nodes round."""
    monkeypatch.setattr(channel, "rounded_normal", lambda rng, scale, size: np.zeros(size, np.int64))
    X, f = table()
    y, classes = targets("labels", f)
    estimator = DPLogisticRegression(feature_bounds=(-1, 1))
    both = fit(estimator, nodes(X, y, classes=classes))
    mu = gdp_mu(1.0, 1e-6) / math.sqrt(2)
    plain = DPLogisticRegression(feature_bounds=(-1, 1), epsilon=float(gdp_epsilon(mu, 1e-6)), delta=1e-6).fit(X, y)
    assert np.allclose(both.coef_, plain.coef_, rtol=1e-4)
    assert np.allclose(both.coef_standard_errors_, plain.coef_standard_errors_, rtol=1e-4)


def test_poisson_batches_are_drawn_by_every_node_for_itself() -> None:
    X, f = table(4000)
    y, classes = targets("labels", f)
    estimator = DPLogisticRegression(feature_bounds=(-1, 1), solver="sgd", max_passes=4)
    model = fit(estimator, nodes(X, y, (2500, 1500), classes=classes, epsilon=8.0))
    assert model.score(X, y) > 0.9
    for certificate in model.certificates_:
        assert certificate.mu is None
        assert certificate.epsilon(1e-6) <= 8.0 * (1 + 1e-9)
        assert type(certificate.plan.parts[0].sampling).__name__ == "Poisson"


def test_each_node_has_its_own_promise_and_the_model_the_weakest(tmp_path: Path) -> None:
    X, f = table(3000)
    y, classes = targets("labels", f)
    first, second = (
        LinearNode(X[:1500], y[:1500], classes=classes, epsilon=0.5, delta=1e-6),
        LinearNode(X[1500:], y[1500:], classes=classes, epsilon=2.0, delta=1e-5, random_state=0),
    )
    model = fit(DPLogisticRegression(feature_bounds=(-1, 1)), [first, second])
    assert [c.epsilon(d) for c, d in zip(model.certificates_, (1e-6, 1e-5), strict=True)] == pytest.approx([0.5, 2.0])
    for delta in (1e-8, 1e-6, 1e-3):
        assert model.certificate_.epsilon(delta) == max(c.epsilon(delta) for c in model.certificates_)
    assert SEEDED in model.certificate_.marks
    assert "(μ√m for m nodes of one μ)" in model.certificates_[0].describe()
    assert any("weakest of the certificates that 2 nodes" in mark for mark in model.certificate_.marks)
    assert (model.epsilon, model.delta) == (pytest.approx(2.0), 1e-5)
    save_model(model, tmp_path / "model.json")
    again = load_model(tmp_path / "model.json")
    assert np.array_equal(again.predict(X), model.predict(X))
    assert again.certificate_.marks == model.certificate_.marks


def test_persons_of_a_node_count_once_and_are_promised_to() -> None:
    X, f = table()
    y, classes = targets("labels", f)
    ids = np.arange(1500) // 3
    given = [
        LinearNode(X[part], y[part], classes=classes, groups=ids[part], **TERMS)
        for part in (slice(900), slice(900, None))
    ]
    assert [node.shape for node in given] == [(300, 3), (200, 3)]
    model = fit(DPLogisticRegression(feature_bounds=(-1, 1)), given)
    assert {c.unit for c in (*model.certificates_, model.certificate_)} == {"person"}
    assert "covers a person by what is at this node only" in model.certificate_.describe()
    mixed = [given[0], LinearNode(X[900:], y[900:], classes=classes, **TERMS)]
    with pytest.raises(FederationError, match=r"nodes differ in unit \(person, record\)"):
        fit(DPLogisticRegression(feature_bounds=(-1, 1)), mixed)


def test_what_nodes_state_is_used_where_the_estimator_says_nothing() -> None:
    X, f = table()
    y, classes = targets("labels", f)
    stated = {"classes": classes, "feature_bounds": (-1, 1), "adjacency": "zero-out"}
    model = fit(DPLogisticRegression(), nodes(X, y, **stated))
    assert model.certificate_.adjacency is Adjacency.ZERO_OUT
    assert model.classes_.tolist() == classes
    assert model.feature_bounds_.tolist() == [[-1.0] * 3, [1.0] * 3]
    with pytest.raises(FederationError, match="bounds of features are not those that this node states"):
        fit(DPLogisticRegression(feature_bounds=(-2, 2)), nodes(X, y, **stated))
    with pytest.raises(FederationError, match="classes that were proposed are not those"):
        fit(DPLogisticRegression(classes=["no", "yes", "maybe"], feature_bounds=(-1, 1)), nodes(X, y, **stated))
    with pytest.raises(FederationError, match=r"a classification, which DPRidge is not for; nothing was spent"):
        fit(DPRidge(feature_bounds=(-1, 1), target_bounds=(0, 1)), nodes(X, y, **stated))
    with pytest.raises(InvalidInput, match="feature_bounds"):
        fit(DPRidge(target_bounds=(0, 1)), nodes(X, f))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"solver": "coordinate"}, "needs the records themselves"),
        ({"view": "final_model"}, "the server sees every sum of every node"),
        ({"arithmetic": "float"}, "whoever sees sums sees their last bits"),
        ({"solver": _Own()}, "asks what nodes may not know"),
    ],
)
def test_what_owners_cannot_give_is_refused_before_anything_is_spent(settings: Any, words: str, tmp_path: Path) -> None:
    X, f = table()
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-5)
    with pytest.raises((NotCovered, InvalidInput), match=words):
        fit(
            DPRidge(feature_bounds=(-1, 1), target_bounds=(-6, 6), **settings),
            nodes(X, f, (1500,), ledger=ledger),
        )
    assert ledger.entries() == ()


def test_settings_without_effect_are_refused() -> None:
    for name, value in (("random_state", 0), ("weighting", "rows")):
        with pytest.raises(InvalidInput, match=name):
            FederatedLinear(DPRidge(**{name: value}))
    with pytest.raises(InvalidInput, match="estimator must be a linear model"):
        FederatedLinear(LinearNode)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="feature_names"):
        FederatedLinear(DPRidge(), feature_names="age")


def test_names_of_columns_are_compared() -> None:
    pandas = pytest.importorskip("pandas")
    X, f = table()
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    estimator = DPRidge(feature_bounds=(-1, 1), target_bounds=(-6, 6))
    model = fit(estimator, [LinearNode(frame, f, **TERMS)], feature_names=["a", "b", "c"])
    assert list(model.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(FederationError, match="not the columns of this node, in their order"):
        fit(estimator, [LinearNode(frame, f, **TERMS)], feature_names=["b", "a", "c"])


def test_tables_are_checked_where_their_owner_sees_them() -> None:
    X, f = table(50)
    with pytest.raises(InvalidInput, match="NaN"):
        LinearNode(np.where(X > 0.9, np.nan, X), f, **TERMS)
    with pytest.raises(InvalidInput, match="label"):
        LinearNode(X, f > 0, classes=["a", "b"], **TERMS)
    with pytest.raises(InvalidInput, match="epsilon"):
        LinearNode(X, f, epsilon=-1.0, delta=1e-6)
    with pytest.raises(InvalidInput, match="adjacency"):
        LinearNode(X, f, adjacency="add-remove", **TERMS)


# -- rules ---------------------------------------------------------------------------------------------------------


class Fails:
    """A link that breaks for good after some questions."""

    def __init__(self, link: Any, after: int) -> None:
        self.link, self.left = link, after

    def submit(self, message: bytes, timeout: float) -> Any:
        self.left -= decode(message).kind == "step"
        if self.left < 0:
            raise LinkLost("the line is dead")
        return self.link.submit(message, timeout)

    def close(self) -> None:
        self.link.close()


def test_a_dropped_node_is_made_up_for_and_stays_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    X, f = table(6000)
    given = nodes(X, f, (2000, 2000, 2000), epsilon=20.0, random_state=0)
    estimator = DPRidge(feature_bounds=(-1, 1), target_bounds=(-6, 6))
    with threaded_nodes(given) as links:
        broken = [links[0], Fails(links[1], 12), links[2]]
        model = FederatedLinear(estimator, timeout=30, on_loss="drop", min_nodes=2).fit(broken)
    assert np.allclose(model.coef_, [1, 2, 3], atol=0.2)
    assert len(model.certificates_) == 3
    (note,) = [note for note in model.notes_ if "dropped" in note]
    assert "node 1 was dropped at step 12: the line is dead" in note
    with threaded_nodes(nodes(X, f, (2000, 2000, 2000))) as links:
        broken = [links[0], Fails(links[1], 12), links[2]]
        with pytest.raises(LinkLost, match=r"node 1 of 3 was lost .the line is dead.*at step 12"):
            FederatedLinear(estimator, timeout=30).fit(broken)


def test_a_node_that_is_gone_before_the_start_is_planned_without(tmp_path: Path) -> None:
    X, f = table(3000)
    ledgers = [Ledger(tmp_path / f"{i}.ledger", epsilon=e, delta=1e-5) for i, e in enumerate((9.0, 0.01))]
    given = [LinearNode(X[i::2], f[i::2], **TERMS, ledger=ledger) for i, ledger in enumerate(ledgers)]
    estimator = DPRidge(feature_bounds=(-1, 1), target_bounds=(-6, 6))
    model = fit(estimator, given, on_loss="drop", min_nodes=1)
    assert "no room" in model.notes_[-1]
    assert [len(ledger.entries()) for ledger in ledgers] == [1, 0]
    assert len(model.certificates_) == 1


def test_a_run_that_stopped_goes_on_from_its_journal_to_the_same_bits(tmp_path: Path) -> None:
    X, f = table(3000)
    estimator = DPRidge(feature_bounds=(-1, 1), target_bounds=(-6, 6))
    path = tmp_path / "run.journal"
    whole = fit(estimator, nodes(X, f, (2000, 1000), random_state=0))
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-5)
    given = nodes(X, f, (2000, 1000), random_state=0, ledger=ledger)
    server = FederatedLinear(estimator, timeout=30)
    with threaded_nodes(given) as links:
        with pytest.raises(LinkLost, match=r"call fit again with the same journal and resume=True"):
            server.fit([links[0], Fails(links[1], 7)], journal=path)
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(InvalidInput, match="there is a journal"):
            server.fit(links, journal=path)
        with pytest.raises(InvalidInput, match="other settings"):
            FederatedLinear(
                DPRidge(
                    alpha=0.5,
                    solver="gradient",
                    **{k: getattr(estimator, k) for k in ("feature_bounds", "target_bounds")},
                )
            ).fit(links, journal=path, resume=True)
        with path.open("ab") as file:
            file.write(b"\0\0\0")  # a crash in the middle of a record
        model = server.fit(links, journal=path, resume=True)
    assert not path.exists()
    assert np.array_equal(model.coef_, whole.coef_)
    assert len(ledger.entries()) == 2, "one for each node, once"
    with pytest.raises(InvalidInput, match="no journal"):
        server.fit([Fails(None, 0)], journal=path, resume=True)


def test_a_session_that_is_gone_is_charged_anew(tmp_path: Path) -> None:
    X, f = table(1000)
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-5)
    estimator, path = DPRidge(feature_bounds=(-1, 1), target_bounds=(-6, 6)), tmp_path / "run.journal"
    given = nodes(X, f, (1000,), ledger=ledger)
    with threaded_nodes(given) as links, pytest.raises(LinkLost):
        FederatedLinear(estimator, timeout=30).fit([Fails(links[0], 3)], journal=path)
    with threaded_nodes(given) as links:  # started again
        with pytest.raises(FederationError, match="no such session"):
            FederatedLinear(estimator, timeout=30).fit(links, journal=path, resume=True)
        FederatedLinear(estimator, timeout=30).fit(links)
    assert len(ledger.entries()) == 2


# -- what a node is asked ------------------------------------------------------------------------------------------

EVERY: dict[str, Any] = {
    "gradient": LossGradient(Huber(0.5), 1.0, 2.0),
    "moments": MomentSum(np.array([-1.0, 0.0, 0.0]), np.array([1.0, 1.0, 0.0])),
    "gram": GramSum(2.0, True),
    "share": BoundedSum(TargetShare(-1.0, 1.0)),
    "distance": BoundedSum(TargetDistance(0.1), 2.0),
    "curvature": BoundedSum(Curvature(Logistic(), np.zeros(3)), 0.25),
    "slope": BoundedSum(SquaredSlope(Logistic(), np.ones(3)), 1.0),
    "quantile": BoundedSum(AtMost(SlopeNorm(Logistic(), np.ones(3)), -1.0)),
}


@pytest.mark.parametrize("name", list(EVERY))
def test_queries_travel_as_words_and_numbers(name: str) -> None:
    ask = Ask(0, 0, write(EVERY[name]))
    back = _codec.decode(_codec.encode(ask))
    query = read_query(back.query, 3)
    assert type(query) is type(EVERY[name])
    assert _codec.digest(write(query)) == _codec.digest(write(EVERY[name]))
    assert (query.bound, query.diameter) == (EVERY[name].bound, EVERY[name].diameter)


@pytest.mark.parametrize(
    "given",
    [
        FeatureBounds.between(-np.ones(3), np.ones(3), constant=True),
        Standardise(np.zeros(3), np.ones(3)),
        Linear(np.eye(3)),
    ],
)
def test_maps_travel_as_words_and_numbers(given: Any) -> None:
    back = read_features(_codec.decode(_codec.encode(write(given))), 3)
    X = table(40)[0]
    assert np.array_equal(back(X), given(X))
    target = AffineTarget(0.5, 2.0)
    assert read_target(write(target), 1) == target
    assert read_target(write(TargetBounds.between(0.0, 2.0)), 1) == TargetBounds.between(0.0, 2.0)


def test_what_nodes_do_not_know_does_not_travel() -> None:
    with pytest.raises(InvalidInput, match="nodes do not know SquareSum"):
        write(SquareSum(np.ones(2)))
    assert set(QUERIES) == {"loss-gradient", "moments", "gram", "bounded-values", "columns-within"}


GOOD = write(GramSum(2.0, True))
BAD: dict[str, Any] = {
    "nothing": None,
    "a number": 3,
    "code": Words("os.system", {"command": "true"}),
    "a private query": Words("item-factors", {}),
    "a statistic": write(TargetShare()),
    "a map": write(Linear(np.eye(3))),
    "no fields": Words("gram", {}),
    "a field more": Words("gram", {**GOOD.fields, "bound": 1e-9}),
    "no bound": Words("gram", {**GOOD.fields, "norm": 0.0}),
    "NaN": Words("gram", {**GOOD.fields, "norm": math.nan}),
    "huge": Words("gram", {**GOOD.fields, "norm": 1e300}),
    "tiny": Words("gram", {**GOOD.fields, "norm": 1e-300}),
    "truth": Words("gram", {**GOOD.fields, "with_target": 1}),
    "other columns": write(MomentSum(-np.ones(5), np.ones(5))),
    "turned bounds": Words("moments", {"low": np.ones(3), "high": -np.ones(3), "with_target": False}),
    "integers": Words("moments", {"low": np.zeros(3, int), "high": np.ones(3), "with_target": False}),
    "a foreign loss": Words("loss-gradient", {"loss": Linear(np.eye(3)), "bound": 1.0, "row_norm": 1.0}),
    "a wild loss": Words("loss-gradient", {"loss": Huber(1e80), "bound": 1.0, "row_norm": 1.0}),
    "nested": write(BoundedSum(AtMost(AtMost(TargetShare(), 0.5), 0.5))),
    "other length": write(BoundedSum(Curvature(Logistic(), np.zeros(5)), 1.0)),
    "infinite point": write(BoundedSum(Curvature(Logistic(), np.full(3, np.inf)), 1.0)),
}


@pytest.mark.parametrize("name", list(BAD))
def test_strange_queries_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_query(BAD[name], 3)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        GOOD,
        Words("Linear", {"matrix": np.ones((2, 3))}),
        Words("Linear", {"matrix": np.full((3, 3), np.nan)}),
        Words("Standardise", {"mean": np.zeros(3), "scale": np.zeros(3)}),
        Words("Standardise", {"mean": np.zeros(3), "scale": -np.ones(3)}),
        Words("FeatureBounds", {**write(FeatureBounds.between(-np.ones(3), np.ones(3))).fields, "low": np.ones(3) * 2}),
        Words("FeatureBounds", {**write(FeatureBounds.between(-np.ones(3), np.ones(3))).fields, "constant": 1}),
        Words("PublicSteps", {}),
    ],
)
def test_strange_maps_are_refused(words: Words) -> None:
    with pytest.raises(InvalidInput):
        read_features(words, 3)


@pytest.mark.parametrize(
    "words",
    [
        GOOD,
        Words("Sign", {"positive": 2}),
        Words("Sign", {"positive": True}),
        Words("AffineTarget", {"centre": 0.0, "scale": 0.0}),
        Words("TargetBounds", {"low": 1.0, "high": 0.0, "centre": 0.0, "scale": 1.0, "logarithmic": False}),
    ],
)
def test_strange_targets_are_refused(words: Words) -> None:
    with pytest.raises(InvalidInput):
        read_target(words, 2)


class Asker:
    """Asks a node's desk whatever it likes, under a plan of two parts."""

    def __init__(self, node: LinearNode, plan: Plan) -> None:
        self.desk, self.step = Desk(node), 0
        proposal = LinearProposal(plan, node.shape[1], node.classes)
        self.offer = decode(self.desk.answer(encode("propose", proposal=_codec.encode(proposal))))
        self.session = self.offer.fields.get("session")
        if self.session:
            assert decode(self.desk.answer(encode("begin", session=self.session))).kind == "ready"

    def ask(self, ask: Any, state: Any = None) -> Any:
        question = encode("step", state, session=self.session, step=self.step, ask=_codec.encode(ask))
        answer = decode(self.desk.answer(question))
        self.step += answer.kind == "sum"
        return answer


def part(**changes: Any) -> Mechanism:
    plain = Mechanism(
        adjacency=Adjacency.REPLACE_ONE, ratio=Schedule.constant(0.1, 4), steps=4, arithmetic=Numbers.EXACT
    )
    return dataclasses.replace(plain, **changes)


def asker(X: Any = None, y: Any = None, plan: Any = None, **terms: Any) -> Asker:
    a, b = table(60)
    return Asker(
        LinearNode(a if X is None else X, b if y is None else y, **{**TERMS, **terms}), plan or Plan((part(),))
    )


def test_questions_that_do_not_fit_take_no_step() -> None:
    one = asker()
    gradient, linear = write(LossGradient(Huber(0.5), 1.0)), write(Linear(np.eye(3)))
    refused = [
        (Ask(1, 0, GOOD), None),
        (Ask(-1, 0, GOOD), None),
        (Ask(True, 0, GOOD), None),
        (Ask(0, 1, GOOD), None),
        (Ask(0, 0, gradient), None),
        (Ask(0, 0, gradient), np.zeros(4)),
        (Ask(0, 0, gradient), np.full(3, np.nan)),
        (Ask(0, 0, gradient), np.zeros((1, 3))),
        (Ask(0, 0, GOOD), np.zeros(3)),
        (Ask(0, 0, GOOD, ((0, 0, linear, None),)), None),
        (Ask(0, 2, GOOD, ((2, 1, linear, None),)), None),
        (Ask(0, 1, GOOD, ((1, 0, linear),)), None),  # type: ignore[arg-type]
        (Ask(0, 1, GOOD, "abc"), None),  # type: ignore[arg-type]
        (GOOD, None),
        (Huber(0.5), None),
    ]
    for ask, state in refused:
        answer = one.ask(ask, state)
        assert answer.kind == "refused", ask
        assert "\n" not in answer.fields["reason"]
    assert one.ask(Ask(0, 1, gradient, ((1, 0, linear, None),)), np.zeros(3)).array.shape == (3,)
    assert one.ask(Ask(0, 1, GOOD)).array.shape == (10,)
    assert one.ask(Ask(0, 1, GOOD, ((1, 0, linear, None),))).kind == "refused", "a view is described once"
    for _ in range(2):
        assert one.ask(Ask(0, 0, GOOD)).kind == "sum"
    assert "all 4 certified steps" in one.ask(Ask(0, 0, GOOD)).fields["reason"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"arithmetic": Numbers.FLOAT}, "last bits"),
        ({"adjacency": Adjacency.ZERO_OUT}, "agree on one"),
        ({"unit": "person"}, "agree on one"),
        ({"label": "a\nb"}, "label"),
        ({"label": "a" * 1000}, "label"),
        ({"releases": 2, "ratio": 0.1}, "every sum"),
        ({"ratio": Schedule([0.0, 0.1, 0.1, 0.1])}, "must be positive"),
        ({"ratio": Schedule([1e-9, 1.0, 1.0, 1.0])}, "far apart"),
    ],
)
def test_plans_that_a_node_does_not_know_are_refused(changes: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_parts(Plan((part(**changes),)), Adjacency.REPLACE_ONE, "record")
    assert words in asker(plan=Plan((part(**changes),))).offer.fields["reason"]


def test_no_plan_of_a_server_weakens_the_promise() -> None:
    for ratio in (1e-9, 0.1, 1e9):
        for steps in (1, 4, 1000):
            one = asker(plan=Plan((part(ratio=Schedule.constant(ratio, steps), steps=steps),)))
            certificate = Certificate.from_json(one.offer.fields["certificate"])
            assert certificate.epsilon(1e-6) <= 1.0 * (1 + 1e-9)
            assert certificate.mu == pytest.approx(gdp_mu(1.0, 1e-6), rel=1e-9)


def test_every_sum_has_the_noise_that_was_certified() -> None:
    """Of rows of zeros the sum is zero, and what leaves is noise."""
    X, y = np.zeros((20, 20)), np.zeros(20)
    plan = Plan((part(steps=60, ratio=Schedule(np.linspace(1.0, 3.0, 60))),))
    one = asker(X, y, plan)
    (mechanism,) = Certificate.from_json(one.offer.fields["certificate"]).plan.parts
    query = GramSum(2.0, True)
    z = [one.ask(Ask(0, 0, write(query))).array / noise_std(mechanism, query, t) for t in range(60)]
    noise = np.concatenate(z)
    assert len(noise) == 60 * 231
    assert abs(noise.std() - 1) < 5 / math.sqrt(2 * len(noise))
    assert stats.kstest(noise, "norm").pvalue > 1e-3
    correlation = np.corrcoef(np.array(z))[np.triu_indices(60, 1)]
    assert np.abs(correlation).max() < 6 / math.sqrt(231)


def _far(rng: Any, p: int) -> tuple[Any, Any]:
    here = rng.normal(size=p) * 10.0 ** rng.integers(-3, 4)
    return here, (-here if rng.random() < 0.5 else rng.normal(size=p) * 10.0 ** rng.integers(-3, 4))


def _questions(rng: Any) -> list[tuple[Any, Any]]:
    """A hostile server's: any map in front of any query, with numbers of any size."""
    size = 10.0 ** rng.integers(-6, 7)
    maps = [
        None,
        write(Linear(rng.normal(size=(3, 3)) * size)),
        write(Standardise(rng.normal(size=3) * size, np.exp(rng.normal(size=3) * 5))),
        write(FeatureBounds.between(-np.ones(3) * size, np.ones(3))),
    ]
    aims = [None, write(AffineTarget(size, 1 / size)), write(TargetBounds.between(-size, size))]
    v = rng.normal(size=3) * size
    queries = [
        (LossGradient(Huber(size), 1.0, [math.inf, size][rng.integers(2)]), v),
        (LossGradient(Logistic(), size), v),
        (MomentSum(-np.ones(4) * size, np.ones(4) * size, True), None),
        (GramSum(size, True), None),
        (BoundedSum(SquaredSlope(Huber(size), v), size), None),
        (BoundedSum(AtMost(SlopeNorm(Logistic(), v), float(rng.normal()))), None),
    ]
    return [
        (Ask(0, 1, write(query), ((1, 0, maps[rng.integers(4)], aims[rng.integers(3)]),)), state)
        for query, state in queries
    ]


@pytest.mark.parametrize("persons", [False, True])
def test_no_question_makes_a_neighbour_move_more_than_its_declared_sensitivity(
    persons: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Record and replay on the node itself, noise taken off: the same hostile questions, two neighbouring tables."""
    monkeypatch.setattr(channel, "rounded_normal", lambda rng, scale, size: np.zeros(size, np.int64))
    rng, worst = np.random.default_rng(3), 0.0
    ids = np.arange(12) // 3 if persons else None
    mechanism = part(unit="person" if persons else "record", ratio=Schedule.constant(0.1, 1), steps=1)
    for _ in range(25):
        X, y = rng.normal(size=(12, 3)) * 10.0 ** rng.integers(-3, 4, size=(12, 1)), rng.normal(size=12) * 10
        X2, y2 = X.copy(), y.copy()
        here, there = _far(rng, 3)
        for row in range(3 if persons else 1):
            X[row], X2[row], y[row], y2[row] = here, there, y[0], -y[0]
        for ask, state in _questions(rng):
            sent = []
            for rows, aims in ((X, y), (X2, y2)):
                one = asker(rows, aims, Plan((mechanism,)), groups=ids, random_state=0)
                answer = one.ask(ask, state)
                assert answer.kind == "sum", answer.fields
                sent.append(answer.array)
            assert np.isfinite(sent[0]).all()
            delta = sensitivity(mechanism, read_query(ask.query, 3))
            worst = max(worst, float(np.linalg.norm(sent[0] - sent[1])) / delta)
    assert worst <= 1 + 1e-9
    assert worst > 0.9, "tame examples prove nothing"


@pytest.mark.parametrize("name", list(EVERY))
def test_views_that_leave_the_range_of_floats_move_nothing_either(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """View after view of 1e60: squares, then records themselves overflow, or vanish."""
    monkeypatch.setattr(channel, "rounded_normal", lambda rng, scale, size: np.zeros(size, np.int64))
    rng, mechanism = np.random.default_rng(0), part(ratio=Schedule.constant(0.1, 1), steps=1)
    query = EVERY[name]
    state = np.ones(3) if isinstance(query, LossGradient) else None
    for depth in (1, 3, 6):
        for linear in (write(Linear(1e60 * np.eye(3) + rng.normal(size=(3, 3)))), write(Linear(np.eye(3) * 1e-60))):
            views = tuple((k + 1, k, linear, write(AffineTarget(1.0, 1e-60))) for k in range(depth))
            X, y = rng.normal(size=(12, 3)), rng.normal(size=12)
            X2 = np.vstack([-X[:1], X[1:]])
            sent = [
                asker(a, y, Plan((mechanism,))).ask(Ask(0, depth, write(query), views), state).array for a in (X, X2)
            ]
            assert np.isfinite(sent[0]).all()
            assert np.linalg.norm(sent[0] - sent[1]) <= sensitivity(mechanism, query) * (1 + 1e-9)


def test_the_replay_would_notice_rows_that_are_taken_for_persons() -> None:
    """A node that counts each row of a person once: its sums move further than the certificate of persons says."""
    X, y = np.ones((4, 3)), np.ones(4)
    query, plan = GramSum(1.0), Plan((part(steps=1, ratio=Schedule.constant(0.1, 1)),))
    sums = []
    for sign in (1.0, 0.0):
        rows = X.copy()
        rows[:3] *= sign  # one person's rows
        with open_session(certify(plan, delta=1e-6), InMemory(rows, y), random_state=0) as session:
            sums.append(session._records.total(query, np.zeros((1, 1)), np.ones((1, 4), bool), None)[0])
    assert np.linalg.norm(sums[0] - sums[1]) > query.diameter
    assert Persons.of(np.array([0, 0, 0, 1]), 4).n == 2
