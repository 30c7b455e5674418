"""Plans of block runs: sensitivity, composition, schedules, and what an update may remember."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tacit.errors import InvalidInput, NotCovered, TacitError
from tacit.mechanism import Adjacency, Mechanism, Schedule
from tacit.run import Channel, Streams
from tacit.run.blocks import Block, GradientStep
from tacit.run.channel import sensitivity
from tacit.run.clipped_sum import VectorSum
from tacit.run.sums.factors import FactorRows, ItemFactors, ItemStatistic, statistic_size
from tacit.solvers.blocks import plan_blocks, run_blocks

MOMENTS, GRADIENT = ItemStatistic.MOMENTS, ItemStatistic.GRADIENT


def unit_rows(k: int = 2, d: int = 4) -> Any:
    H = np.abs(np.random.default_rng(1).normal(size=(k, d)))
    return H / np.linalg.norm(H, axis=1, keepdims=True)


def block(name: str = "a", bound: float = 1.0, **more: Any) -> Block:
    return Block(name, np.zeros(3), bound, GradientStep(0.1), **more)


@pytest.mark.parametrize("sampling", ["cyclic", "poisson", "full"])
@pytest.mark.parametrize("relation", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
def test_the_diameter_counts_only_where_every_step_reads_everybody(relation: Adjacency, sampling: str) -> None:
    size = None if sampling == "full" else 10
    both = [block("a", diameter=1.2), block("b", 3.0, diameter=3.5)]
    plan = plan_blocks(1.0, 1e-5, blocks=both, n=100, batch_size=size, epochs=3, sampling=sampling, adjacency=relation)
    total = VectorSum(np.zeros((100, 3)), 1.0)
    sharp = type("Sharp", (VectorSum,), {"diameter": property(lambda self: 1.2)})(np.zeros((100, 3)), 1.0)
    wide = 2.0 if relation is Adjacency.REPLACE_ONE else 1.0
    assert sensitivity(plan.mechanism, total) == wide
    full = relation is Adjacency.REPLACE_ONE and sampling == "full"
    assert sensitivity(plan.mechanism, sharp) == (1.2 if full else wide)


def test_a_certificate_composes_every_release_of_the_worst_batch_and_what_is_beside() -> None:
    def beside(strength: float) -> Mechanism:
        return Mechanism(adjacency=Adjacency.REPLACE_ONE, ratio=Schedule.constant(2 * strength, 1), steps=1)

    plan = plan_blocks(
        None,
        1e-5,
        blocks=[block("a"), block("b", 3.0, claimed_contraction=0.0)],
        n=100,
        batch_size=25,
        epochs=3,
        noise_schedule=lambda k, j: 1.0 + 3 * j + 0.5 * k,
        shares={"a": 1.0, "b": 4.0},
        noise_multiplier=3.0,
        beside=beside,
    )
    squares = (plan.ratio**2).sum(axis=1)
    worst = max(squares[j::4].sum() for j in range(4))
    assert plan.certificate.mu is not None
    assert plan.certificate.mu >= math.sqrt(5 * worst) * (1 - 1e-12)


@pytest.mark.parametrize("relation", [Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT])
@pytest.mark.parametrize("sampling", ["cyclic", "poisson", "full"])
def test_every_entry_of_every_release_has_the_noise_that_was_certified(relation: Adjacency, sampling: str) -> None:
    """Rows of zeros contribute nothing: what an update sees is noise, also for items that nobody touched."""
    seen: list[Any] = []

    def keep(value: Any, noisy: Any, at: Any) -> Any:
        seen.append(noisy.copy())
        return value

    H = unit_rows(2, 1000)
    size, bound = statistic_size(2, 1000, MOMENTS), 0.5
    items = Block("items", H, bound, keep, size, diameter=math.sqrt(2) * bound)
    plan = plan_blocks(
        1.0,
        1e-5,
        blocks=[items],
        n=12,
        batch_size=None if sampling == "full" else 4,
        epochs=2,
        sampling=sampling,
        noise_schedule="linear",
        adjacency=relation,
    )
    problem = ItemFactors(FactorRows(np.zeros((12, 1000)), 1.0), items, MOMENTS)
    run_blocks(plan, problem, Channel(plan.certificate, 12, streams=Streams(0)))
    replaced = (math.sqrt(2) if sampling == "full" else 2.0) * bound
    delta = replaced if relation is Adjacency.REPLACE_ONE else bound
    for noisy, ratio in zip(seen, plan.ratio[:, 0], strict=True):
        assert noisy.std() == pytest.approx(delta / ratio, rel=0.1)
        assert (noisy != 0).all(), "an entry without noise tells that nobody touched it"


@pytest.mark.parametrize(
    "value",
    [math.inf, math.nan, 0.0, -1.0, 1e300, np.ones(2), 1j, None, "much"],
    ids=["inf", "nan", "zero", "negative", "huge", "array", "complex", "none", "word"],
)
@pytest.mark.filterwarnings("ignore")
def test_strange_variances_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        plan_blocks(1.0, 1e-5, blocks=[block()], n=100, epochs=2, noise_schedule=lambda k, j: value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("multiplier", [1e-320, 1e-200, 1e-100, 1e200])
def test_noise_that_vanishes_is_refused_or_certified_as_such(multiplier: float) -> None:
    try:
        plan = plan_blocks(None, 1e-5, blocks=[block()], n=100, epochs=2, noise_multiplier=multiplier)
    except TacitError:
        return
    assert plan.certificate.epsilon(1e-5) > 1e6 or multiplier > 1


def test_published_claims_do_not_touch_the_certificate() -> None:
    plans = [
        plan_blocks(
            1.0, 1e-5, blocks=[block(claimed_contraction=c), block("b", claimed_contraction=c)], n=100, epochs=5
        )
        for c in (None, 0.0, 0.5)
    ]
    assert len({plan.certificate.epsilon(1e-5) for plan in plans}) == 1
    assert all((plan.ratio == plans[0].ratio).all() for plan in plans)


def test_an_update_with_memory_is_not_certified_as_one_without() -> None:
    """The certificate says "no momentum and no per-record state is carried between steps [enforced]"."""

    class Heavy(GradientStep):
        def __call__(self, value: Any, noisy: Any, at: Any) -> Any:
            past = vars(self).setdefault("past", [])
            past.append(noisy)
            return np.mean(past, axis=0).reshape(value.shape)  # an average of all releases: nothing is forgotten

    both = [Block("a", np.zeros(3), 1.0, Heavy(0.1)), block("b")]
    with pytest.raises(NotCovered):
        plan_blocks(
            None, 1e-5, blocks=both, n=100, epochs=5, view="final_model", coupling=np.eye(2) / 2, noise_multiplier=3.0
        )
