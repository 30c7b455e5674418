"""The contract that every theorem inherits: it comes to whatever is defined, and asks for examples."""

import copy
import json
import math
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest

import tacit
from tacit._codec import described
from tacit.accounting import Certificate, Gaussian, Theorem, certify, compare_theorems, theorems
from tacit.accounting import theorem as theorem_module
from tacit.accounting.gaussian import GaussianComposition
from tacit.errors import InvalidInput, MechanismMismatch, NotCovered
from tacit.mechanism import (
    Adjacency,
    AllIterates,
    BlockSweeps,
    CorrelatedNoise,
    Cyclic,
    CyclicPoisson,
    Evidence,
    FrozenArray,
    FullBatch,
    Independent,
    LastIterate,
    Mechanism,
    Memory,
    Noise,
    NoiseShape,
    NoisyMax,
    Output,
    Plan,
    Poisson,
    Rounding,
    Sampling,
    Schedule,
    Selection,
    Separated,
    Shuffled,
    Start,
    Trials,
    View,
    WithoutReplacement,
)

DELTA = 1e-5


def hidden(steps, **change):
    c = Schedule.constant(0.9, steps)
    return LastIterate(lipschitz=c, noise_std=Schedule.constant(1.0, steps), **change)


def blocks(**change):
    coupling = FrozenArray([[0.8, 0.1], [0.2, 0.7]])
    return BlockSweeps(coupling=coupling, noise_std=FrozenArray([1.0, 1.0]), **change)


THEOREMS = [theorem for theorem in theorems() if type(theorem).__module__.startswith("tacit.")]
MECHANISM_THEOREMS = [theorem for theorem in THEOREMS if theorem.about is Mechanism]
IDS = [theorem.id for theorem in MECHANISM_THEOREMS]
EACH = pytest.mark.parametrize("theorem", THEOREMS, ids=lambda theorem: theorem.id)
EACH_OF_MECHANISMS = pytest.mark.parametrize("theorem", MECHANISM_THEOREMS, ids=IDS)


def examples(theorem, adjacency, ratio=0.5, steps=12):
    plain = Mechanism(adjacency=adjacency, ratio=ratio, steps=steps)
    try:
        found = theorem.examples(plain)
    except NotImplementedError as missing:
        pytest.fail(str(missing), pytrace=False)
    assert all(part.adjacency is Adjacency.parse(adjacency) for part in found)
    return found


def covered(theorem, ratio=0.5, steps=12):
    """Its examples under every relation, without those that it refuses there (fixed membership under add/remove)."""
    return [part for a in Adjacency for part in examples(theorem, a, ratio, steps) if not theorem.gaps(part)]


def epsilon(theorem, mechanism, delta=DELTA):
    return theorem.apply(mechanism).epsilon(delta)


@EACH
def test_every_relation_it_names_is_covered_somehow(theorem):
    if "adjacency" in theorem.about.axes:
        assert {m.adjacency for m in covered(theorem)} <= set(theorem.covers["adjacency"])
    assert {Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE} <= {m.adjacency for m in covered(theorem)}


@EACH_OF_MECHANISMS
@pytest.mark.parametrize("axis", ["sampling", "noise"])
def test_its_examples_show_every_sampling_and_noise_that_it_covers(theorem, axis):
    shown = {type(getattr(m, axis)) for m in covered(theorem)}
    for m in covered(theorem):
        for value in (value for cls in theorem.covers[axis] for value in cls.examples()):
            if type(value) not in shown and not theorem.gaps(replace(m, **{axis: value})):
                pytest.fail(
                    f"{type(theorem).__name__} covers {type(value).__name__}, but none of its examples has it: add "
                    "replace(plain, ...) with it to examples(self, plain)",
                    pytrace=False,
                )


@EACH
def test_epsilon_is_positive_and_falls_with_delta(theorem):
    for m in covered(theorem):
        values = [epsilon(theorem, m, d) for d in (1e-8, 1e-5, 1e-2)]
        assert values[0] > values[1] > 0
        assert values[1] > values[2] >= 0


@EACH
def test_more_noise_never_costs_more(theorem):
    for strong, weak in zip(covered(theorem, 0.25), covered(theorem, 0.5), strict=True):
        assert epsilon(theorem, strong) < epsilon(theorem, weak)


@EACH
def test_more_steps_never_cost_less(theorem):
    for short, long in zip(covered(theorem, steps=12), covered(theorem, steps=24), strict=True):
        assert epsilon(theorem, short) <= epsilon(theorem, long) * (1 + 1e-9)


def epsilon_or_infinite(theorem, mechanism):
    try:
        return epsilon(theorem, mechanism)
    except NotCovered:
        return math.inf


@EACH
def test_without_noise_there_is_no_promise(theorem):
    assert all(epsilon_or_infinite(theorem, m) > 1e5 for m in covered(theorem, ratio=1e4))


@EACH
def test_delta_of_epsilon_is_the_delta(theorem):
    for m in covered(theorem):
        curve = theorem.apply(m)
        for delta in (1e-7, 1e-5, 1e-3):
            assert curve.delta(curve.epsilon(delta)) <= delta * (1 + 1e-6)


@EACH
def test_running_a_plan_twice_doubles_it(theorem):
    for m in covered(theorem, ratio=0.3):
        name = theorem.id
        once, twice = certify(m, theorem=name), certify(Plan.of(m, m), theorem=name)
        if isinstance(theorem.apply(m), Gaussian):
            assert twice.mu == pytest.approx(math.sqrt(2) * once.mu, rel=1e-12)
        else:
            assert once.epsilon(DELTA) < twice.epsilon(DELTA) <= 2 * once.epsilon(DELTA / 2) * (1 + 1e-9)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_a_poisson_plan_twice_is_twice_the_steps(adjacency):
    m = Mechanism(adjacency=adjacency, ratio=0.5, steps=12, sampling=Poisson(0.2))
    twice = certify(Plan.of(m, m)).epsilon(DELTA)
    assert twice == pytest.approx(certify(replace(m, ratio=0.5, steps=24)).epsilon(DELTA), rel=1e-6)


@EACH
def test_assumptions_and_theorem_are_stated(theorem):
    for m in covered(theorem)[:3]:
        assert theorem.assumptions(m)
        assert all(a.text and str(a).endswith("]") for a in theorem.assumptions(m))
    assert theorem.reference


@EACH
def test_the_arithmetic_is_an_assumption_of_every_theorem_and_changes_no_number(theorem):
    for part in covered(theorem)[:3]:
        exact = in_arithmetic(part, "exact")
        for one, evidence, word in ((part, Evidence.DECLARED, "floating"), (exact, Evidence.ENFORCED, "integers")):
            (found,) = {a for a in theorem.assumptions(one) if a.text.startswith("arithmetic: ")}
            assert (found.evidence, word in found.text) == (evidence, True)
            certificate = certify(one, theorem=theorem.id)
            assert certificate.arithmetic == ("float" if one is part else "exact")
            assert str(found) in certificate.describe()
        plain = epsilon(theorem, in_arithmetic(exact, "float"))
        priced = hasattr(
            getattr(part, "view", None), "rounding"
        )  # a chain on a lattice of 2⁻⁵⁰⁰ is another computation
        assert epsilon(theorem, exact) == (pytest.approx(plain, rel=1e-12) if priced else plain)


def in_arithmetic(part, arithmetic):
    """The same part in other numbers; a hidden chain on a lattice so fine that its price is no float."""
    if isinstance(part, Mechanism):
        noise = part.noise.rounded(24) if isinstance(part.noise, CorrelatedNoise) else part.noise
        view = part.view
        if hasattr(view, "rounding"):
            blocks = len(view.noise_std.values) if isinstance(view, BlockSweeps) else 1
            none = Schedule.constant(0.0, blocks if isinstance(view, BlockSweeps) else part.steps)
            lattice = Rounding(unit=2.0**-500, sizes=(1,) * blocks, radius=1.0, error=none)
            view = replace(view, rounding=lattice if arithmetic == "exact" else None)
        return replace(part, arithmetic=arithmetic, noise=noise, view=view)
    if isinstance(part, NoisyMax):
        return replace(part, arithmetic=arithmetic)
    return replace(part, base=tuple(in_arithmetic(one, arithmetic) for one in part.base))


def test_one_float_part_makes_a_plan_float():
    exact = Mechanism(adjacency="zero-out", ratio=0.5, steps=3, arithmetic="exact")
    plain, trials = replace(exact, arithmetic="float"), Trials(3.0)
    assert certify(Plan.of(exact, exact)).arithmetic == "exact"
    assert (certify(exact) + certify(plain)).arithmetic == "float"
    assert certify(Selection(base=(exact,), trials=trials, holdout=(plain,))).arithmetic == "float"
    assert certify(Selection(base=(exact,), trials=trials, holdout=(exact,))).arithmetic == "exact"
    assert Certificate.from_json(certify(exact).to_json()).arithmetic == "exact"
    texts = [a.text for a in certify(Plan.of(exact, plain)).assumptions]
    assert sum(text.startswith("arithmetic: ") for text in texts) == 2


def test_a_theorem_without_examples_is_told_what_to_write(monkeypatch):
    monkeypatch.setattr(theorem_module, "_registry", dict(theorem_module._registry))  # it is gone afterwards

    class Silent(GaussianComposition):
        id, name, reference = "test-silent", "silent", "nobody"
        examples = Theorem.examples

    with pytest.raises(pytest.fail.Exception, match=r"Silent gives no example.*write examples\(self, plain\)"):
        covered(Silent())


# -- refusals ------------------------------------------------------------------------------------------------


@described("test.BrandNewSampling")
@dataclass(frozen=True)
class BrandNewSampling(Sampling):
    rate: float = 0.1


@described("test.BrandNewNoise")
@dataclass(frozen=True)
class BrandNewNoise(Noise):
    scale: float = 1.0


@described("test.BrandNewView")
@dataclass(frozen=True)
class BrandNewView(View):
    seen: str = "half of the iterates"


OTHERS = {
    "sampling": [
        FullBatch(),
        Poisson(0.2),
        Cyclic(3),
        Shuffled(3),
        WithoutReplacement(0.2),
        CyclicPoisson(3, 0.2),
        Separated(3, 4),
        BrandNewSampling(),
    ],
    "noise": [Independent(), CorrelatedNoise.toeplitz([0.8, 0.6]), BrandNewNoise()],
    "view": [AllIterates(), hidden(12), BrandNewView()],
}


@EACH_OF_MECHANISMS
@pytest.mark.parametrize("axis", list(OTHERS))
def test_every_other_axis_value_is_refused(theorem, axis):
    m = covered(theorem)[-1]
    assert m.adjacency is Adjacency.REPLACE_ONE
    for value in OTHERS[axis]:
        if type(value) in theorem.covers[axis]:
            continue
        try:
            changed = replace(m, **{axis: value})
        except InvalidInput:
            continue  # a description that does not fit together cannot even be written
        with pytest.raises(NotCovered) as refusal:
            theorem.apply(changed)
        assert refusal.value.axis.split(".")[0] == axis
        assert ";" in str(refusal.value)  # reason; remedy


@pytest.mark.parametrize(
    "new", [{"sampling": BrandNewSampling()}, {"noise": BrandNewNoise()}, {"view": BrandNewView()}]
)
def test_an_axis_value_that_nobody_knows_gets_no_certificate(new):
    with pytest.raises(NotCovered) as refusal:
        certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=4, **new))
    assert refusal.value.axis == next(iter(new))
    assert pickle.loads(pickle.dumps(refusal.value)).axis == refusal.value.axis


@pytest.mark.parametrize("sampling", [Cyclic(3), Shuffled(3), WithoutReplacement(0.2), Separated(3, 4)])
def test_fixed_membership_is_refused_under_add_remove(sampling):
    with pytest.raises(NotCovered) as refusal:
        certify(Mechanism(adjacency="add-remove", ratio=0.5, steps=12, sampling=sampling))
    assert refusal.value.axis == "sampling"


@pytest.mark.parametrize("view", [hidden(12, start=Start.RELEASED), blocks(start=Start.RELEASED)])
def test_a_start_that_nobody_paid_for_is_refused(view):
    releases = 2 if isinstance(view, BlockSweeps) else 1
    m = Mechanism(adjacency="replace-one", ratio=0.5, steps=12, view=view, releases=releases)
    with pytest.raises(NotCovered) as refusal:
        certify(m)
    assert refusal.value.axis == "view.start"
    first = Mechanism(adjacency="replace-one", ratio=0.4, steps=1)
    assert certify(Plan.of(first, m)).mu > certify(first).mu


def test_a_selection_cannot_start_at_a_point_nobody_paid_for():
    m = Mechanism(adjacency="replace-one", ratio=0.1, steps=12, view=hidden(12, start=Start.RELEASED))
    with pytest.raises(NotCovered, match="released"):
        certify(Selection(base=(m,), trials=Trials(5)))


@pytest.mark.parametrize("change", [{"adjacency": "zero-out"}, {"unit": "person"}])
def test_guarantees_under_different_relations_or_units_never_mix(change):
    m = Mechanism(adjacency="replace-one", ratio=0.5, steps=4)
    other = replace(m, **change)
    with pytest.raises(InvalidInput, match="never compose"):
        Plan.of(m, other)
    with pytest.raises(InvalidInput):
        certify(m) + certify(other)
    with pytest.raises(InvalidInput):
        Selection(base=(m, other), trials=Trials(5))


def test_hidden_views_refuse_what_the_chain_theorems_do_not_know():
    for change in ({"output": Output.AVERAGE}, {"memory": Memory.MOMENTUM}, {"noise_shape": NoiseShape.COORDINATE}):
        m = Mechanism(adjacency="replace-one", ratio=0.5, steps=12, view=hidden(12, **change))
        said = {theorem.id: bound for theorem, bound in compare_theorems(m)}
        assert list(said) == IDS
        for name in ("last-iterate", "last-iterate-averaged"):
            assert isinstance(said[name], NotCovered)
        assert certify(m).mu == pytest.approx(0.5 * math.sqrt(12))


# -- reductions ----------------------------------------------------------------------------------------------


def mu_of(**fields):
    return certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=12, **fields)).mu


def test_reductions_to_the_plain_gaussian():
    plain = mu_of()
    assert plain == pytest.approx(0.5 * math.sqrt(12))
    for fields in (
        {"sampling": Poisson(1.0)},
        {"sampling": Cyclic(1)},
        {"sampling": Shuffled(1)},
        {"sampling": Separated(1, 12)},
        {"noise": CorrelatedNoise.toeplitz([1.0])},
        {"noise": CorrelatedNoise.dense(np.eye(12))},
        {"sampling": CyclicPoisson(1, 1.0)},
    ):
        assert mu_of(**fields) == pytest.approx(plain, rel=1e-12), fields


def test_one_visit_per_epoch():
    assert mu_of(sampling=Cyclic(3)) == pytest.approx(0.5 * math.sqrt(4))
    assert mu_of(sampling=CyclicPoisson(3, 1.0)) == pytest.approx(0.5 * math.sqrt(4))
    assert mu_of(sampling=Cyclic(12)) == pytest.approx(0.5)


@pytest.mark.parametrize("sampling", [FullBatch(), Cyclic(3)])
def test_one_block_is_the_last_iterate(sampling):
    one = BlockSweeps(coupling=FrozenArray([[0.9]]), noise_std=FrozenArray([1.0]))
    assert mu_of(view=one, sampling=sampling) == pytest.approx(mu_of(view=hidden(12), sampling=sampling), rel=1e-7)


def test_without_contraction_the_last_iterate_costs_as_much_as_all_of_them():
    flat = LastIterate(lipschitz=Schedule.constant(1.0, 12), noise_std=Schedule.constant(1.0, 12))
    assert mu_of(view=flat) == pytest.approx(mu_of())


def test_uncoupled_blocks_are_independent_chains():
    two = BlockSweeps(coupling=FrozenArray(np.diag([0.9, 0.9])), noise_std=FrozenArray([1.0, 1.0]))
    assert mu_of(view=two, releases=2) == pytest.approx(math.sqrt(2) * mu_of(view=hidden(12)), rel=1e-6)


# -- certificates --------------------------------------------------------------------------------------------


def all_covered():
    for theorem in THEOREMS:
        for m in covered(theorem)[:2]:
            yield pytest.param(Plan.of(m), id=f"{theorem.id}-{m.adjacency.value}")
    base = Mechanism(adjacency="replace-one", ratio=0.3, steps=1)
    yield pytest.param(Plan.of(Selection(base=(base,), trials=Trials(10)), base), id="selection")


@pytest.mark.parametrize("plan", list(all_covered()))
def test_certificates_round_trip(plan):
    certificate = certify(plan, delta=DELTA).marked("not private: seeded")
    for again in (
        Certificate.from_json(certificate.to_json()),
        pickle.loads(pickle.dumps(certificate)),
        copy.copy(certificate),
        copy.deepcopy(certificate),
    ):
        assert again == certificate
        assert hash(again) == hash(certificate)
        assert again.marks == ("not private: seeded",)
        assert again.epsilon(DELTA) == certificate.epsilon(DELTA)
        assert again.digest == certificate.digest


@pytest.fixture
def certificate():
    return certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=4), delta=DELTA)


def test_certificates_cannot_be_made_or_changed_by_hand(certificate):
    with pytest.raises(TypeError):
        Certificate(certificate.plan, [], (), DELTA)
    for name in ("_plan", "_marks", "epsilon", "anything"):
        with pytest.raises(AttributeError):
            setattr(certificate, name, None)
    with pytest.raises(AttributeError):
        del certificate._plan


@pytest.mark.parametrize(
    ("word", "other"), [("adjacency", "add-remove"), ("unit", "nobody"), ("view", "the final model")]
)
def test_words_in_the_file_that_are_not_those_of_the_plan_are_noticed(certificate, word, other):
    data = json.loads(certificate.to_json())
    assert data["software"] == f"tacit {tacit.__version__}"
    for wrong in ({**data, word: other}, {name: value for name, value in data.items() if name != word}):
        with pytest.raises(MechanismMismatch, match="words do not describe its plan"):
            Certificate.from_json(json.dumps(wrong))


@pytest.mark.parametrize("claim", [0.0, 0.5, -1.0])
def test_a_smaller_claim_in_the_file_is_noticed(certificate, claim):
    data = json.loads(certificate.to_json())
    data["claim"]["epsilon"] = claim
    with pytest.raises(MechanismMismatch):
        Certificate.from_json(json.dumps(data))


@pytest.mark.parametrize(
    "edit",
    [
        lambda d: d["claim"].update(epsilon="NaN"),
        lambda d: d["claim"].update(delta=0.0),
        lambda d: d["claim"].update(delta=2.0),
        lambda d: d.update(plan={}),
        lambda d: d.update(plan=None),
        lambda d: d.update(plan={"type": "os.system"}),
        lambda d: d["plan"]["parts"][0].update(steps=-1),
        lambda d: d["plan"]["parts"][0].update(ratio=None),
        lambda d: d["plan"]["parts"][0].update(sampling="everything"),
        lambda d: d["plan"]["parts"][0].update(surprise=1),
        lambda d: d.update(format=99),
        lambda d: d.pop("marks"),
        lambda d: d.pop("claim"),
        lambda d: d.update(marks=3),
    ],
)
def test_other_garbage_in_the_file_is_refused(certificate, edit):
    data = json.loads(certificate.to_json())
    edit(data)
    with pytest.raises((InvalidInput, NotCovered)):
        Certificate.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "3", '"x"', "[" * 100_000])
def test_text_that_is_no_certificate_is_refused(text):
    with pytest.raises(InvalidInput):
        Certificate.from_json(text)


def test_a_cheaper_plan_in_the_file_gives_the_cheaper_certificate_only_with_its_own_claim(certificate):
    data = json.loads(certificate.to_json())
    dearer = json.loads(certify(Mechanism(adjacency="replace-one", ratio=1.0, steps=4), delta=DELTA).to_json())
    data["plan"] = dearer["plan"]
    with pytest.raises(MechanismMismatch):
        Certificate.from_json(json.dumps(data))
