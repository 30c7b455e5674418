"""Every sampling describes itself truthfully and draws its batches: the contract, and the bits of version 0.1."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from contracts import nothing_escapes, told

import tacit.accounting.theorem as theorem_module
from tacit import _codec
from tacit._codec import decode, described, encode, registered
from tacit.accounting import Certificate, Gaussian, Profile, Theorem, certify
from tacit.accounting.poisson import PoissonGaussian
from tacit.errors import InvalidInput, MechanismMismatch, NotCovered
from tacit.mechanism import (
    Adjacency,
    Cyclic,
    CyclicPoisson,
    Evidence,
    FullBatch,
    Groups,
    Independent,
    Mechanism,
    Noise,
    Partition,
    Plan,
    Poisson,
    Sampling,
    Schedule,
    Separated,
    Shuffled,
    WithoutReplacement,
    batch_sizes,
)
from tacit.records import InMemory
from tacit.release import Streams, open_session, sensitivity
from tacit.release.queries import VectorSum

OURS = [c for c in registered().values() if issubclass(c, Sampling) and c.__module__.startswith("tacit.")]
EXAMPLES = [example for cls in OURS if hasattr(cls, "examples") for example in cls.examples()]  # else: test_codec.py
EACH = pytest.mark.parametrize("sampling", EXAMPLES, ids=repr)
DRAWN = pytest.mark.parametrize("sampling", [s for s in EXAMPLES if type(s).draw is not Sampling.draw], ids=repr)
N, STEPS = 12, 9


def masks(sampling, n=N, steps=STEPS, replicas=4, seed=0):
    draw = sampling.draw(n, replicas, Streams(seed))
    return np.stack([draw(step) for step in range(steps)])


# -- the contract -----------------------------------------------------------------------------------------------


@DRAWN
def test_batches_are_masks_that_repeat_with_their_streams_in_any_order(sampling):
    found, kind = masks(sampling), type(sampling).__name__
    told(
        found.shape == (STEPS, 4, N) and found.dtype == bool,
        f"draw() of {kind} makes {found.dtype} of shape {found.shape[1:]}: a step is a mask of (replicas, n) booleans",
    )
    told(
        np.array_equal(found, masks(sampling)),
        f"draw() of {kind} has randomness of its own: take it from streams.at(purpose, step)",
    )
    draw = sampling.draw(N, 4, Streams(0))
    for step in (7, 0, 3, 7, 1):
        told(
            np.array_equal(draw(step), found[step]),
            f"draw() of {kind} depends on the steps before: a resumed run begins anywhere and must draw the same",
        )


@DRAWN
def test_no_record_takes_part_beyond_the_stated_energy(sampling):
    rng = np.random.default_rng(0)
    for values in (rng.uniform(0.0, 1.0, STEPS), np.r_[1.0, np.zeros(STEPS - 1)], np.full(STEPS, 0.5)):
        energy = (masks(sampling, replicas=200) * values[:, None, None] ** 2).sum(axis=0)
        worst = sampling.worst_energy(Schedule(values))
        told(
            energy.max() <= worst * (1 + 1e-12),
            f"worst_energy() of {type(sampling).__name__} says {worst:g}, and a record took part with "
            f"{energy.max():g}: theorems would promise too much",
        )
        if isinstance(sampling, FullBatch | Cyclic):  # whose patterns are all seen
            assert energy.max() == pytest.approx(worst)


@EACH
def test_the_energy_of_constant_ratios_needs_no_layout(sampling):
    ratio = Schedule.constant(0.25, 10**9)
    assert 0 < sampling.worst_energy(ratio) <= ratio.sum_of_squares()
    almost = Schedule(np.r_[np.full(11, 0.25), 0.25 * (1 - 1e-15)])
    constant = sampling.worst_energy(Schedule.constant(0.25, 12))
    assert sampling.worst_energy(almost) == pytest.approx(constant, rel=1e-12)


@DRAWN
def test_a_stated_period_is_that_of_every_record(sampling):
    k = sampling.period
    if k is None:
        return
    visits = masks(sampling)
    regular = all(np.array_equal(visits[step], visits[step % k]) for step in range(STEPS))
    told(
        regular and (visits[:k].sum(axis=0) == 1).all(),
        f"{type(sampling).__name__} states period = {k}, and a record is not read at j, j + {k}, j + {2 * k}, … alone",
    )


@DRAWN
def test_independent_means_that_a_record_more_moves_nobody_else(sampling):
    if not sampling.independent:
        return
    without, with_one = (masks(sampling, n=n, replicas=1) for n in (N, N + 1))
    told(
        np.array_equal(with_one[:, :, :N], without),
        f"{type(sampling).__name__} says independent, and a record more moves others to other batches",
    )


@EACH
def test_what_is_assumed_is_said(sampling):
    kind = type(sampling).__name__
    told(
        sampling.assumption or isinstance(sampling, FullBatch),
        f"{kind} states no assumption: write the sentence that a certificate shows about its batches",
    )
    drawn = type(sampling).draw is not Sampling.draw
    told((sampling.evidence is Evidence.ENFORCED) <= drawn, f"{kind} says ENFORCED of batches that it does not draw")


def test_every_sampling_gets_these_tests():
    nothing_escapes(Sampling, set(OURS), 'put @described("its name in files") above @dataclass(frozen=True)')


@pytest.mark.parametrize("sampling", [s for s in EXAMPLES if type(s).draw is Sampling.draw], ids=repr)
def test_batches_of_others_are_not_drawn_here(sampling):
    with pytest.raises(MechanismMismatch, match=r"drawn elsewhere: to run this mechanism here, certify"):
        sampling.draw(N, 1, Streams(0))
    assert sampling.evidence is Evidence.DECLARED
    if sampling not in Separated.examples():
        return  # a new one: no theorem names it yet
    certificate = certify(Mechanism(adjacency="zero-out", ratio=0.5, steps=4, sampling=sampling))
    session = open_session(certificate, InMemory(np.zeros((N, 1))))
    with pytest.raises(MechanismMismatch, match="drawn elsewhere"):
        session.release(VectorSum(1.0))


# -- the bits of version 0.1 ------------------------------------------------------------------------------------


SIX = (FullBatch, Poisson, Cyclic, Shuffled, WithoutReplacement, CyclicPoisson)
OF_0_1 = [example for cls in SIX for example in cls.examples()]


def labels_0_1(n, k, replicas, rng):
    ordered = np.repeat(np.arange(k), batch_sizes(n, k))
    if rng is None:
        return np.tile(ordered, (replicas, 1))
    return rng.permuted(np.tile(ordered, (replicas, 1)), axis=1)


def mask_0_1(s, n, replicas, streams, step):
    """``tacit.run.sampling.Batches.mask`` of version 0.1, without its cache of partitions."""
    shape = (replicas, n)
    if isinstance(s, FullBatch):
        return np.ones(shape, bool)
    if isinstance(s, Cyclic):
        secret = s.partition is Partition.SECRET
        return labels_0_1(n, s.n_batches, replicas, streams.at("partition") if secret else None) == step % s.n_batches
    rng = streams.at("batch", step)
    if isinstance(s, Poisson):
        return rng.random(shape) < s.rate
    if isinstance(s, CyclicPoisson):
        groups = streams.at("partition")
        if s.groups is Groups.INDEPENDENT:
            group = groups.integers(s.n_groups, size=(replicas, n))
        else:
            group = labels_0_1(n, s.n_groups, replicas, groups)
        return (group == step % s.n_groups) & (rng.random(shape) < s.rate)
    if isinstance(s, Shuffled):
        batch = labels_0_1(n, s.n_batches, replicas, streams.at("shuffle", step // s.n_batches))
        return batch == step % s.n_batches
    assert isinstance(s, WithoutReplacement)
    first = np.arange(n) < round(s.rate * n)
    return rng.permuted(np.tile(first, (replicas, 1)), axis=1)


@pytest.mark.parametrize(
    "sampling", [s for s in EXAMPLES if s in OF_0_1 and type(s).draw is not Sampling.draw], ids=repr
)
@pytest.mark.parametrize(("n", "replicas"), [(1, 1), (12, 1), (13, 3), (500, 2)])
@pytest.mark.parametrize("seed", [0, 7])
def test_the_batches_of_a_seed_are_those_of_version_0_1(sampling, n, replicas, seed):
    found = masks(sampling, n=n, replicas=replicas, seed=seed)
    for step in range(STEPS):
        assert np.array_equal(found[step], mask_0_1(sampling, n, replicas, Streams(seed), step))


# -- a sampling of a user ---------------------------------------------------------------------------------------


@described("test.EveryOther")
@dataclass(frozen=True)
class EveryOther(Sampling):
    """Even records at even steps, odd ones at odd steps."""

    shift: int = 0

    assumption: ClassVar[str] = "records are read at every other step"

    @property
    def period(self) -> int:
        return 2

    def worst_energy(self, ratio):
        squares = ratio.to_array() ** 2
        return float(max(squares[::2].sum(), squares[1::2].sum()))

    def draw(self, n, replicas, streams):
        turn = np.tile((np.arange(n) + self.shift) % 2, (replicas, 1))
        return lambda step: turn == step % 2


@pytest.fixture
def own_theorems(monkeypatch):
    """Theorems that a test defines are gone after it."""
    monkeypatch.setattr(theorem_module, "_registry", dict(theorem_module._registry))


def every_other(**fields):
    return Mechanism(adjacency="zero-out", ratio=0.5, steps=6, sampling=EveryOther(1), **fields)


def define_theorem():
    class EveryOtherComposition(Theorem):
        id = "test-every-other"
        name = "composition over every other step"
        reference = "this test"
        view = "every iterate"
        covers: ClassVar = {
            "adjacency": (Adjacency.ZERO_OUT,),
            "sampling": (EveryOther,),
            "noise": (Independent,),
            "view": PoissonGaussian.covers["view"],
        }

        def curve(self, mechanism):
            return Gaussian(mechanism.sampling.worst_energy(mechanism.step_ratio) ** 0.5)

    return EveryOtherComposition


def test_a_sampling_of_a_user_is_read_back():
    """Version 0.1 wrote it into ledgers, and nothing could read it from there."""
    plan = Plan.of(every_other())
    assert decode(encode(plan)) == plan


def test_a_sampling_that_no_theorem_names_is_not_certified():
    with pytest.raises(NotCovered, match="does not cover EveryOther") as refusal:
        certify(every_other())
    assert refusal.value.axis == "sampling"


def test_a_sampling_that_a_theorem_names_is_certified_read_back_and_drawn(own_theorems):
    define_theorem()
    certificate = certify(every_other())
    assert certificate.mu == pytest.approx(0.5 * 3**0.5)
    assert [theorem.id for theorem in certificate.theorems] == ["test-every-other"]
    assert "records are read at every other step [declared]" in certificate.describe()
    again = Certificate.from_json(certificate.to_json())
    assert again == certificate
    assert again.mu == certificate.mu
    certificate = certify(replace(every_other(), ratio=1e4))  # hardly any noise
    session = open_session(certificate, InMemory(np.eye(4)), random_state=0)
    seen = [session.release(VectorSum(1.0)).round().tolist() for _ in range(2)]
    assert seen == [[0, 1, 0, 1], [1, 0, 1, 0]]


def test_a_channel_does_not_draw_gaussian_noise_for_a_certificate_of_another(own_theorems):
    @described("test.OneLaplace")
    @dataclass(frozen=True)
    class Laplace(Noise):
        scale: float = 0.5

    class OneLaplace(Theorem):
        id = "test-laplace"
        name = "Laplace mechanism"
        reference = "this test"
        view = "every iterate"
        covers: ClassVar = {
            "adjacency": (Adjacency.ZERO_OUT,),
            "sampling": (FullBatch,),
            "noise": (Laplace,),
            "view": PoissonGaussian.covers["view"],
        }

        def curve(self, mechanism):
            return Profile(lambda e: max(0.0, 1 - np.exp(e - 2.0)))

    certificate = certify(Mechanism(adjacency="zero-out", ratio=0.5, steps=1, noise=Laplace()))
    with pytest.raises(MechanismMismatch, match="certified is Laplace: draw it with your own code"):
        open_session(certificate, InMemory(np.eye(4))).release(VectorSum(1.0))


def test_a_subclass_of_full_batches_does_not_get_their_smaller_sensitivity():
    """Two contributions at a right angle are √2·C apart, which counts only where every step reads every record once."""

    @described("test.Twice")
    @dataclass(frozen=True)
    class Twice(FullBatch):
        pass

    class RightAngle(VectorSum):
        diameter = 1.5

    total = RightAngle(1.0)
    for sampling, expected in ((FullBatch(), 1.5), (Twice(), 2.0)):
        m = Mechanism(adjacency="replace-one", ratio=0.5, steps=1, sampling=sampling)
        assert sensitivity(m, total) == expected


def test_a_subclass_of_a_sampling_is_not_taken_for_its_parent():
    """Version 0.1 certified a subclass of FullBatch as FullBatch, wrote it, and could not read it back."""

    @described("test.Everybody")
    @dataclass(frozen=True)
    class Everybody(Poisson):
        def draw(self, n, replicas, streams):
            return lambda step: np.ones((replicas, n), bool)

    @described("test.Often")
    @dataclass(frozen=True)
    class Often(FullBatch):
        times: int = 2

    for sampling in (Everybody(0.01), Often(3)):
        m = Mechanism(adjacency="zero-out", ratio=0.5, steps=4, sampling=sampling)
        assert decode(encode(m)) == m
        with pytest.raises(NotCovered, match=f"does not cover {type(sampling).__name__}"):
            certify(m)


def test_a_sampling_without_a_description_is_refused_at_once():
    @dataclass(frozen=True)
    class Unwritten(Poisson):
        pass

    with pytest.raises(
        InvalidInput, match=r'sampling is a Unwritten.*decorate the class with @described\("Unwritten"\)'
    ):
        Mechanism(adjacency="zero-out", ratio=0.5, steps=4, sampling=Unwritten(0.5))


@pytest.mark.parametrize("value", ["everything", None, 3, FullBatch, Independent(), Separated])
def test_what_is_no_sampling_is_refused(value):
    with pytest.raises(InvalidInput, match=r"sampling must be a Sampling such as FullBatch\(\)"):
        replace(every_other(), sampling=value)


def test_the_registry_is_read_only():
    with pytest.raises(TypeError):
        _codec.registered()["Poisson"] = EveryOther
