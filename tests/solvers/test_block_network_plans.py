"""Plans of block networks: what a step reads, when releases are taken, and which claims the certificate ignores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tacit.estimators.block_networks import DPBlockMLPClassifier
from tacit.mechanism import Adjacency
from tacit.problem.moments import moments_bound, moments_diameter
from tacit.problem.network import architecture
from tacit.run import Channel, Streams
from tacit.run.blocks import PROBLEMS, Block, BlockSum, GradientStep, joined
from tacit.run.channel import sensitivity
from tacit.run.sums import BlockNetwork, LayerStatistic, TableRows
from tacit.solvers.blocks import plan_blocks, run_blocks
from tacit.solvers.network import layer_blocks

SMALL: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "epochs": 2,
    "batch_size": 20,
    "sampling": "cyclic",
    "progress": False,
}
PUBLIC: dict[str, Any] = {**SMALL, "feature_bounds": (0, 1), "classes": [0, 1]}
GRADIENT, MOMENTS = LayerStatistic.GRADIENT, LayerStatistic.MOMENTS


def table(n: int = 60, p: int = 3) -> Any:
    return np.random.default_rng(0).uniform(size=(n, p))


def halves(n: int = 60) -> Any:
    return np.resize([0, 1], n)


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
@pytest.mark.parametrize(("batch_size", "sampling"), [(60, "poisson"), (20, "poisson"), (20, "cyclic")])
def test_diameters_count_only_where_every_step_reads_everybody(relation: str, batch_size: int, sampling: str) -> None:
    sizes = {**PUBLIC, "batch_size": batch_size, "sampling": sampling, "adjacency": relation, "update": "statistics"}
    plan, described, network = DPBlockMLPClassifier((4,), **sizes)._planned(60, 3, 2)
    target = np.zeros((60, 2))
    more: dict[str, Any] = {"weights": described.weights, "residual_norms": described.residual_norms}
    problem = BlockNetwork(TableRows(np.zeros((60, 4))), target, network, described.blocks, MOMENTS, **more)
    for i, (c, a, U) in enumerate(zip(network.connections, described.weights, described.residual_norms, strict=True)):
        R = network.design_norm(c)
        found = sensitivity(plan.mechanism, BlockSum(problem, i))
        if Adjacency.parse(relation) is not Adjacency.REPLACE_ONE:
            assert found >= moments_bound(R, U, a) * (1 - 1e-12)
        elif batch_size == 60:
            assert found >= moments_diameter(R, U, a) * (1 - 1e-12)
        else:
            assert found >= 2 * moments_bound(R, U, a) * (1 - 1e-12)


def test_every_release_of_a_jacobi_step_is_paid_for_and_taken_at_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    network = architecture((3,), (4,), 2)
    rng = np.random.default_rng(0)
    seen: list[tuple[int, Any]] = []

    class Watching(BlockNetwork):
        def totals(self, values: Any, index: Any) -> Any:
            seen.append((len(index), joined(values)))
            return super().totals(values, index)

    W = tuple(rng.normal(size=c.map.weights) for c in network.connections)
    blocks = tuple(Block(c.name, w, 0.01, GradientStep(1.0)) for c, w in zip(network.connections, W, strict=True))
    X, y = rng.uniform(size=(12, 3)), np.eye(2)[halves(12)]
    plans = [
        plan_blocks(1.0, 1e-5, blocks=blocks, n=12, batch_size=4, epochs=3, sampling="poisson", order=order)
        for order in ("jacobi", "gauss-seidel")
    ]
    assert plans[0].mechanism == plans[1].mechanism
    assert plans[0].mechanism.steps * plans[0].mechanism.releases == 9 * 2
    problem = Watching(TableRows(X), y, network, blocks)
    monkeypatch.setitem(PROBLEMS, BlockNetwork.name, Watching)
    channel = Channel(plans[0].certificate, 12, streams=Streams(0))
    run_blocks(plans[0], problem, channel)
    assert channel.steps_left == 0
    assert len(seen) <= 9
    assert len({state.tobytes() for _, state in seen}) == len(seen)  # one state a step


def test_replicas_of_a_jacobi_run_are_single_runs() -> None:
    network = architecture((3,), (4,), 2)
    described = layer_blocks(
        network, "gradient", seed=0, steps=4, step_size=1.0, last_step=1.0, contribution_norm=None, l2=0.0
    )
    plan = plan_blocks(1.0, 1e-5, blocks=described.blocks, n=8, batch_size=4, epochs=2, order="jacobi")
    problem = BlockNetwork(TableRows(table(8)), np.eye(2)[halves(8)], network, described.blocks)
    single = run_blocks(plan, problem, Channel(plan.certificate, 8, streams=Streams(0)))
    several = run_blocks(plan, problem, Channel(plan.certificate, 8, replicas=1, streams=Streams(0)), replicas=1)
    both = run_blocks(plan, problem, Channel(plan.certificate, 8, replicas=2, streams=Streams(0)), replicas=2)
    assert all((a == b).all() for a, b in zip(single, several, strict=True))
    assert all(len(part) == 2 and np.abs(part[0] - part[1]).max() > 0 for part in both)


def test_claims_of_the_paper_and_steps_do_not_touch_the_certificate() -> None:
    found = set()
    for step_size, last in ((1e-6, 0.1), (4.0, 0.1), (4.0, 1.0), (1e30, 1e-6)):
        model = DPBlockMLPClassifier((4,), **{**PUBLIC, "sampling": "cyclic"}, step_size=step_size, last_step=last)
        plan = model._planned(60, 3, 2)[0]
        squares = (plan.ratio**2).sum(axis=1)
        worst = max(squares[j :: plan.n_batches].sum() for j in range(plan.n_batches))
        assert plan.certificate.mu == pytest.approx(math.sqrt(worst), rel=1e-9)
        found.add(plan.certificate.epsilon(1e-6))
    assert len(found) == 1


def test_a_schedule_that_changes_its_mind_is_asked_once() -> None:
    asked: list[tuple[int, int]] = []

    def moody(k: int, j: int) -> float:
        asked.append((k, j))
        return 1.0 + len(asked)

    model = DPBlockMLPClassifier((4,), **PUBLIC, noise_schedule=moody, random_state=0)
    model.fit(table(), halves())
    assert len(asked) == len(set(asked)) == 2 * 3
    ratio = model.plan_.ratio
    assert np.allclose(ratio[0] ** 2 * 2, ratio[5] ** 2 * 7)
