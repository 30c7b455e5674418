"""Noise and sums on the model's device: normal, keyed, correlated as the strategy says, and nothing through NumPy."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.mechanism import Adjacency
from tacit.noise import StreamingNoise
from tacit.noise.streams import Streams
from tacit.release.channel import Channel
from tacit.torch import TrainingPlan
from tacit.torch.gradients import PerRecordGradients
from tacit.torch.in_place import InPlace, normal_blocks

CPU = torch.device("cpu")
G = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 40, generator=G), torch.randint(0, 3, (60,), generator=G)
LOSS = nn.CrossEntropyLoss()


def normals(key: bytes, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.cat([z.clone() for _, z in normal_blocks(key, size, dtype, CPU)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_are_standard_normal_and_independent(dtype):
    z = normals(b"k" * 32, 500_001, dtype).double().numpy()
    assert len(z) == 500_001
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert stats.kstest(1.01 * z, "norm").pvalue < 1e-3  # the test would see another scale
    half = 1 << 15
    pairs = z[:half], z[half : 2 * half]  # made from one radius and angle
    assert abs(np.corrcoef(*pairs)[0, 1]) < 0.03
    assert abs(np.corrcoef(pairs[0] ** 2, pairs[1] ** 2)[0, 1]) < 0.03
    assert abs(z**4 - 3).mean() < 10
    assert np.abs(z).max() > 4


def test_another_key_gives_other_numbers_and_the_same_key_the_same():
    first, again, other = (normals(key, 1000) for key in (b"a" * 32, b"a" * 32, b"b" * 32))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    streams = Streams(3)
    names = [("noise", 1, b""), ("noise", 2, b""), ("noise", 1, b"x"), ("dice", 1, b"")]
    assert len({streams.key(*name) for name in names}) == 4
    assert streams.key(*names[0]) == Streams(3).key(*names[0])
    with pytest.raises(ValueError, match="key"):
        normals(b"short", 10)


@pytest.mark.parametrize("bands", [[[1.0]], [[1.0, -0.4]], [[2.0, 0.5, -0.3]]])
def test_rows_are_those_of_the_strategy(bands):
    """C·x = z: what streams of NumPy make from the same normal numbers."""
    noise, size = StreamingNoise(bands), 70_000  # more than one block
    place = InPlace({}, size, torch.float64, CPU)
    reference, state, store = StreamingNoise(bands), noise.init(size), place.store(noise.slots, None)
    for t in range(7):
        key = bytes([t]) * 32
        place.sums.zero_()
        place.add_noise(3.0, key, store, t % noise.slots, noise.coefficients(t))
        row = reference.next(state, normals(key, size, torch.float64).numpy())
        np.testing.assert_allclose(place.sums.numpy(), 3.0 * row, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(store.array(), state.rows, rtol=1e-12, atol=1e-12)
    place.sums.zero_()
    place.add_noise(3.0, key, store, 6 % noise.slots, noise.coefficients(6))  # a row made again is the same
    np.testing.assert_allclose(place.sums.numpy(), 3.0 * row, rtol=1e-12, atol=1e-12)


def plan(**change) -> TrainingPlan:
    return TrainingPlan(60, **{"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 20, "steps": 6, **change})


def test_the_noise_of_a_step_has_the_certified_scale():
    """An empty model update but for noise: σ·C/B, at every step."""
    p, moves = plan(strategy="dpsgd", clip_norm=0.5, learning_rate=1.0), []
    model = nn.Linear(40, 2000, bias=False)
    for batch in p.batches((X, torch.zeros(60, 2000))):
        before = model.weight.detach().clone()
        p.step(model, lambda output, target: (output * target).sum(), batch)
        moves.append((model.weight.detach() - before).reshape(-1))
    expected = p.noise_multiplier * 0.5 / 20
    for move in moves:
        assert abs(float(move.std()) / expected - 1) < 0.02
    assert abs(float(moves[0] @ moves[1]) / float(moves[0].norm() * moves[1].norm())) < 0.02


class Large(TorchDispatchMode):
    """Counts operations whose results have the model's size, in float64; and what leaves for NumPy."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.wide, self.seen = size, [], 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, torch.Tensor) and value.numel() >= self.size:
                self.seen += 1
                if value.dtype == torch.float64:
                    self.wide.append(str(function))
        return out


@pytest.mark.parametrize("bands", [1, 3])
@pytest.mark.parametrize("around", [False, True])
def test_nothing_of_the_models_size_is_in_float64_or_in_numpy(bands, around, monkeypatch):
    model = nn.Sequential(nn.Linear(40, 5000), nn.Tanh(), nn.Linear(5000, 3))
    model = nn.Sequential(model, nn.Softmax(1)) if around else model  # taps instead of a chain
    size = sum(p.numel() for p in model.parameters())
    arrays: list[int] = []
    numpy = torch.Tensor.numpy

    def spied(self, **how):
        arrays.append(self.numel())
        return numpy(self, **how)

    p = plan(bands=bands, strategy="dpsgd" if bands == 1 else "bandmf")
    for batch in p.batches((X, Y)):
        if batch.step == 0:
            p.step(model, LOSS, batch)  # the dry run compares in float64
            continue
        monkeypatch.setattr(torch.Tensor, "numpy", spied)
        with Large(size // 2) as large:
            p.step(model, LOSS, batch)
        monkeypatch.undo()
        break
    assert large.seen
    assert not large.wide
    assert max(arrays, default=0) < size // 2


def hashed(monkeypatch) -> list[int]:
    """How many numbers are hashed in each release."""
    fed: list[int] = []
    feed = InPlace.feed

    def counted(self, digest):
        fed.append(self.size)
        feed(self, digest)

    monkeypatch.setattr(InPlace, "feed", counted)
    return fed


def run(p: TrainingPlan, model: nn.Module, steps: int = 6) -> torch.Tensor:
    for batch in p.batches((X, Y)):
        p.step(model, LOSS, batch)
        if p.steps_done >= steps:
            break
    return model.weight.detach().clone()


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(40, 3)


def test_sums_are_hashed_only_where_the_key_is_shared(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    fed = hashed(monkeypatch)
    p, model = plan(bands=2), linear()
    run(p, model, 3)
    assert not fed
    p.save(tmp_path / "c", model)
    run(p, model, 5)
    assert len(fed) == 2
    again, other = plan(bands=2), linear()
    again.restore(tmp_path / "c", other, (X, Y))
    assert torch.equal(run(again, other, 5), model.weight)
    assert len(fed) == 4
    run(plan(bands=2, random_state=1), linear(), 2)
    assert len(fed) == 6


def test_one_key_never_hides_two_sums(monkeypatch):
    """Seeded runs share a key: with other records, each release has noise of another name."""
    keys: dict[bytes, bytes] = {}
    add_noise = InPlace.add_noise

    def added(self, sigma, key, rows, target, coefficients):
        clean = hashlib.sha256(self.sums.numpy().tobytes()).digest()
        assert keys.setdefault(key, clean) == clean
        add_noise(self, sigma, key, rows, target, coefficients)

    monkeypatch.setattr(InPlace, "add_noise", added)
    global X
    kept = X
    try:
        for k in range(3):
            X = kept + 0.1 * k
            run(plan(bands=2, random_state=1), linear())
    finally:
        X = kept
    assert len(keys) == 18


def test_noise_is_of_another_name_at_every_step_of_a_private_run(monkeypatch):
    keys: list[bytes] = []
    add_noise = InPlace.add_noise

    def added(self, sigma, key, rows, target, coefficients):
        keys.append(key)
        add_noise(self, sigma, key, rows, target, coefficients)

    monkeypatch.setattr(InPlace, "add_noise", added)
    for _ in range(2):
        run(plan(bands=2), linear())
    assert len(set(keys)) == 12


def test_a_release_that_is_interrupted_is_made_again_with_the_same_rows(monkeypatch):
    """The row of noise was begun: the step is repeated with the same noise, and nothing was handed out before."""
    add_noise, broken = InPlace.add_noise, []

    def added(self, sigma, key, rows, target, coefficients):
        add_noise(self, sigma, key, rows, target, coefficients)
        if not broken and target == 1:
            broken.append(self.sums)
            raise KeyboardInterrupt

    ends = []
    for interrupted in (False, True):
        p, model = plan(bands=3, random_state=1), linear()
        if interrupted:
            monkeypatch.setattr(InPlace, "add_noise", added)
            with pytest.raises(KeyboardInterrupt):
                run(p, model)
            assert p.steps_done == 1
        ends.append(run(p, model))
    assert broken
    assert torch.equal(*ends)


def test_in_place_and_apart_the_sums_are_the_same():
    model = nn.Sequential(nn.Linear(40, 5), nn.Tanh(), nn.Linear(5, 3))
    from tacit.torch.objective import Objective
    from tacit.torch.records import Records

    query, records = PerRecordGradients(Objective(model, LOSS), 0.3), Records((X, Y))
    theta = query.objective.flatten(query.objective.trainable()).numpy()[None]
    apart = query.total(records, theta, np.ones((1, 60), bool))[0]
    place = query.place()
    records.add_up(query, place, np.ones((1, 60), bool))
    np.testing.assert_array_equal(place.sums.double().numpy(), apart)


def test_a_channel_in_exact_arithmetic_releases_nothing_in_place():
    p = plan(arithmetic="exact", strategy="dpsgd")
    mechanism = p.noise.certificate.plan.parts[0]
    channel = Channel(mechanism, "d", 60, Streams())
    assert mechanism.adjacency is Adjacency.ZERO_OUT
    with pytest.raises(Exception, match="in floating point"):
        channel.release_in_place(None, InPlace({}, 3, torch.float32, CPU), lambda members: None)
