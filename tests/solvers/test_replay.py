"""Record and replay whole solvers: swap one record, freeze noise and earlier outputs, see how far each release moves.

The run on the neighbour is handed what the first run released, so every state is the same on both sides, and only the
record's own contributions can differ.
"""

from __future__ import annotations

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.mechanism import Adjacency
from tacit.problem import Design, Huber, Logistic, Penalty, Records, SmoothedHinge, Squared, Task
from tacit.run import Channel, Streams
from tacit.run.channel import sensitivity
from tacit.solvers import (
    Budget,
    CoordinateDescent,
    MetricDescent,
    NoisyCyclicDescent,
    NoisyGradientDescent,
    NoisyStatistics,
    ProximalSGD,
    Session,
)
from tacit.solvers.constant import ConstantModel

PAIRS = 200
REGRESSION, CLASSIFICATION = (Squared(), Huber(0.4)), (Logistic(), SmoothedHinge(0.5))
SOLVERS = {
    "coordinate": (CoordinateDescent(passes=2, clip=0.3), REGRESSION + CLASSIFICATION),
    "blocks": (CoordinateDescent("independent", 2, passes=2, clip=0.3), REGRESSION + CLASSIFICATION),
    "gradient": (NoisyGradientDescent(steps=3, clip=0.3), REGRESSION + CLASSIFICATION),
    "sgd": (ProximalSGD(batch_size=6, passes=2, clip=0.3), REGRESSION + CLASSIFICATION),
    "cyclic": (NoisyCyclicDescent(epochs=2, batches=3, clip=0.3), REGRESSION + CLASSIFICATION),
    "metric": (MetricDescent(), REGRESSION + CLASSIFICATION),
    "statistics": (NoisyStatistics(clip=0.5), REGRESSION[:1]),
    "constant": (ConstantModel(), REGRESSION + CLASSIFICATION),
}


class Tape:
    """What one run released, and how far another one's sums are from it."""

    def __init__(self, monkeypatch) -> None:
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []
        self.moves: list[tuple[str, float]] = []
        self._replaying, self._next = False, 0
        monkeypatch.setattr(Channel, "_noise", lambda channel, sigma, index, clean, _: self(channel, sigma, clean))
        monkeypatch.setattr(Channel, "sweep", lambda channel, sweep, state: self._sweep(channel, sweep, state))
        self._rng = np.random.default_rng(5)

    def __call__(self, channel: Channel, sigma: float, clean: np.ndarray, ratio: float | None = None) -> np.ndarray:
        if not self._replaying:
            noise = sigma * self._rng.standard_normal(clean.shape)
            self.kept.append((clean, noise))
            return noise
        then, noise = self.kept[self._next]
        self._next += 1
        if ratio is None:
            step = channel._step if len(channel.mechanism.ratio) == channel.mechanism.steps else 0
            ratio = channel.mechanism.ratio[step]
        self.moves.append((channel.mechanism.label, float(np.linalg.norm(clean - then) / (sigma * ratio))))
        return then + noise - clean  # so that the same number is released

    def _sweep(self, channel: Channel, sweep, state):
        ratio = channel.mechanism.ratio[0]
        sigma = sensitivity(channel.mechanism, sweep) / ratio
        for k in range(len(sweep.sizes)):
            clean = sweep.clipped_sum(state, k)
            state = sweep.apply(state, clean + self(channel, sigma, clean, ratio), k)
        return state

    def replay(self) -> None:
        self._replaying, self._next = True, 0

    def rewind(self) -> None:
        self._replaying, self.kept = False, []


def neighbours(loss, rng: np.random.Generator, n: int = 12, p: int = 3):
    """Two tables in mapped units that differ in one record: often opposite, often at the bounds."""
    X = rng.choice([-1.0, 1.0, 0.2, 0.0], size=(n, p))
    X[:, 0] = 1.0
    other = X.copy()
    i = int(rng.integers(n))
    other[i, 1:] = -X[i, 1:] if rng.random() < 0.5 else rng.uniform(-1, 1, p - 1)
    y = rng.choice([-1.0, 1.0], size=n) if loss.margin else rng.choice([-1.0, 1.0, 0.1], size=n)
    y2 = y.copy()
    y2[i] = -y[i] if rng.random() < 0.8 or loss.margin else rng.uniform(-1, 1)
    if loss.margin:
        return tuple(Records(Design(a), np.zeros(n), b) for a, b in ((X, y), (other, y2)))
    return tuple(Records(Design(a), b) for a, b in ((X, y), (other, y2)))


@pytest.mark.parametrize("name", sorted(SOLVERS))
def test_no_release_of_any_solver_moves_further_than_declared(name, monkeypatch):
    solver, losses = SOLVERS[name]
    tape, rng = Tape(monkeypatch), np.random.default_rng(0)
    view = "final_model" if name == "cyclic" else "all_iterates"
    prepared = {}
    for loss in losses:
        low, high = np.array([1.0, -1.0, -1.0]), np.ones(3)
        penalty = Penalty.of(2, l1=0.01, l2=0.01).with_free_intercept()
        task = Task(loss, penalty, 12, low, high, True, 0.0 if loss.margin else 1.0)
        ready = solver.prepare(task, Budget(20.0, 1e-3, Adjacency.REPLACE_ONE, view))
        prepared[loss] = ready, certify(ready.plan, delta=1e-3)
    for pair in range(PAIRS):
        loss = losses[pair % len(losses)]
        ready, certificate = prepared[loss]
        tape.rewind()
        here, there = neighbours(loss, rng)
        ready.solve(here, Session(certificate, 12, Streams(pair)))
        tape.replay()
        ready.solve(there, Session(certificate, 12, Streams(pair)))  # the same batches
        assert tape._next == len(tape.kept)  # as many releases, whatever the records
    moves = np.array([move for _, move in tape.moves])
    assert moves.max() <= 1 + 1e-9
    assert moves.max() >= 0.99
    if name == "metric":  # every stage comes near its own bound, too
        for label in {label for label, _ in tape.moves}:
            largest = max(move for found, move in tape.moves if found == label)
            assert largest >= (0.4 if label == "metric" else 0.8), label


def test_the_harness_notices_a_solver_that_forgets_to_clip(monkeypatch):
    from tacit.run.sums.gradient import LinearGradient

    def unclipped(self, state):
        return self._loss.derivative(self._design.dot(state.T) - self._offset[:, None])

    monkeypatch.setattr(LinearGradient, "_slopes", unclipped)
    tape, rng = Tape(monkeypatch), np.random.default_rng(0)
    task = Task(Squared(), Penalty.of(3), 12, np.full(3, -1.0), np.ones(3), False, 1.0)
    ready = NoisyGradientDescent(steps=3, clip=0.3).prepare(task, Budget(20.0, 1e-3))
    certificate = certify(ready.plan)
    for pair in range(10):
        tape.rewind()
        here, there = neighbours(Squared(), rng)
        ready.solve(here, Session(certificate, 12, Streams(pair)))
        tape.replay()
        ready.solve(there, Session(certificate, 12, Streams(pair)))
    assert max(move for _, move in tape.moves) > 2
