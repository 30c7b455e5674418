"""Block networks under audit: what is right stays below its certificate and comes near, what is not is caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

from tacit.audit import audit_epsilon, audit_gdp
from tacit.estimators.block_networks import DPBlockMLPClassifier
from tacit.run import Channel, Streams
from tacit.run.blocks import BlockSum, joined
from tacit.run.channel import sensitivity
from tacit.run.sums import BlockNetwork, TableRows
from tacit.solvers.blocks import run_blocks

SMALL: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "epochs": 2,
    "batch_size": 20,
    "sampling": "cyclic",
    "progress": False,
}
PUBLIC: dict[str, Any] = {**SMALL, "feature_bounds": (0, 1), "classes": [0, 1]}


def summed(problem: BlockNetwork, block: int, W: Any, records: Any = None) -> Any:
    """What the channel would add noise to: the sum over these records."""
    mask = np.ones(problem.records, bool)
    if records is not None:
        mask[:] = False
        mask[records] = True
    return BlockSum(problem, block).total(joined(W)[None], mask[None])[0]


RUNS = 1000
HERE, THERE = 11, 12


def audited(update: str, monkeypatch: pytest.MonkeyPatch, batches: int = 1) -> Any:
    """Opposite labels of one record, through the estimator's own plan; weights hardly move, so their sum tells all."""
    kept: dict[Any, Any] = {}
    right = BlockNetwork.total

    def once(self: Any, block: int, values: Any, index: Any) -> Any:
        key = id(self), block, index.tobytes(), joined(values).tobytes()  # sums leave no trace: see above
        if key not in kept:
            kept[key] = right(self, block, values, index)
        return kept[key]

    monkeypatch.setattr(BlockNetwork, "total", once)
    n = 2
    model = DPBlockMLPClassifier(
        (2,),
        **{**PUBLIC, "epsilon": 4.0, "delta": 1e-3, "batch_size": n // batches, "epochs": 3, "sampling": "poisson"},
        update=update,
    )
    plan, described, network = model._planned(n, 2, 2)
    blocks = tuple(replace(block, update=_Keep()) for block in plan.blocks)  # all that privacy depends on is the same
    plan = replace(plan, blocks=blocks)
    X = np.array([[0.9, 0.8, 0.5], [0.0, 0.0, 0.0]], np.float32)
    more: dict[str, Any] = {"weights": described.weights, "residual_norms": described.residual_norms}
    sides = [
        BlockNetwork(TableRows(X), np.eye(2, dtype=np.float32)[labels], network, blocks, described.statistic, **more)
        for labels in ([0, 0], [1, 0])
    ]
    start = tuple(b.start for b in blocks)
    ways = [summed(sides[0], i, start) - summed(sides[1], i, start) for i in range(len(blocks))]
    scales = [sensitivity(plan.mechanism, BlockSum(sides[0], i)) / plan.ratio[0, i] for i in range(len(blocks))]

    def sampler(problem: BlockNetwork, seed: int) -> Any:
        def sample(k: int) -> Any:
            _Keep.seen.clear()
            channel = Channel(plan.certificate, n, replicas=k, streams=Streams(seed))
            run_blocks(plan, problem, channel, replicas=k)
            return sum(
                np.array(_Keep.seen[b.name]).reshape(plan.steps, k, -1).sum(axis=0) @ way / scale**2
                for b, way, scale in zip(blocks, ways, scales, strict=True)
            )

        return sample

    return sampler(sides[0], HERE), sampler(sides[1], THERE), plan.certificate


class _Keep:
    """An update that keeps what was released, and the weights as they are."""

    seen: ClassVar[dict[str, list[Any]]] = {}

    def __call__(self, value: Any, noisy: Any, at: Any) -> Any:
        name = next(name for name, kept in at.values.items() if kept is value or np.shares_memory(kept, value))
        self.seen.setdefault(name, []).append(noisy)
        return value


@pytest.mark.parametrize(("update", "near"), [("gradient", 0.5), ("statistics", 0.3)])
def test_what_is_right_stays_below_its_certificate_and_comes_near(
    update: str, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, certificate = audited(update, monkeypatch)
    found = audit_gdp(here, there, RUNS)
    assert not found.verdict(certificate).violated
    assert found.mu_lower >= near * certificate.mu


def test_poisson_batches_stay_below(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there, certificate = audited("gradient", monkeypatch, batches=2)
    found = audit_epsilon(here, there, RUNS // 2, delta=1e-3)
    assert not found.verdict(certificate).violated


def test_contributions_that_are_not_clipped_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.run.sums.network._factor", lambda norms, longest: np.ones_like(norms))
    here, there, certificate = audited("gradient", monkeypatch)
    assert audit_gdp(here, there, RUNS).verdict(certificate).violated
