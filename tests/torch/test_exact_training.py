"""Training in exact arithmetic: integer sums of clipped gradients, rounded strategies, and what certificates say."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from tacit.errors import InvalidInput
from tacit.release.query import Grid
from tacit.torch import PrivateTrainer, TrainingPlan
from tacit.torch.gradients import PerRecordGradients
from tacit.torch.marks import SAME_EVERYWHERE
from tacit.torch.records import Records

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=G), torch.randint(0, 3, (60,), generator=G)
LOSS = nn.CrossEntropyLoss()
GRID = Grid(2.0**-30)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def plan(**change) -> TrainingPlan:
    settings = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 10, "steps": 12, "bands": 4}
    return TrainingPlan(60, **{**settings, "arithmetic": "exact", **change})


def trained(p: TrainingPlan, m: nn.Module, until: int = 12) -> torch.Tensor:
    for batch in p.batches((X, Y)):
        p.step(m, LOSS, batch)
        if p.steps_done >= until:
            break
    return torch.cat([part.detach().reshape(-1) for part in m.parameters()])


# -- sums -----------------------------------------------------------------------------------------------------------


def test_integers_never_move_further_than_the_clip():
    """In fractions: no tolerance."""
    rng, worst = np.random.default_rng(1), 0.0
    for _ in range(60):
        query, here, there, state = PerRecordGradients.example(rng, 5)
        a, b = (query.total(rows, state, np.ones((1, 5), bool), GRID) for rows in (here, there))
        less = query.total(here, state, np.array([[False, True, True, True, True]]), GRID)
        assert a.dtype == np.int64
        for other, limit in ((b, 2 * query.bound), (less, query.bound)):
            square = Fraction(GRID.unit) ** 2 * sum(int(x) ** 2 for x in (a - other)[0])
            assert square <= Fraction(limit) ** 2
        worst = max(worst, float(np.linalg.norm((a - less)[0].astype(float))) * GRID.unit / query.bound)
    assert worst > 0.99


def test_integers_are_the_sum_that_floats_approximate():
    rng = np.random.default_rng(2)
    for _ in range(10):
        query, rows, _, state = PerRecordGradients.example(rng, 7)
        members = rng.random((1, 7)) < 0.7
        plain, found = query.total(rows, state, members), query.total(rows, state, members, GRID)
        np.testing.assert_allclose(found * GRID.unit, plain, atol=1e-5)


def test_one_record_at_a_time_no_order_and_no_company_changes_a_bit():
    rng = np.random.default_rng(3)
    query, rows, _, state = PerRecordGradients.example(rng, 9)
    alone = PerRecordGradients(query.objective, query.bound, chunk_size=1)
    whole = alone.total(rows, state, np.ones((1, 9), bool), GRID)
    each = [alone.total(rows, state, np.arange(9)[None] == i, GRID) for i in rng.permutation(9)]
    np.testing.assert_array_equal(np.sum(each, axis=0), whole)
    order = rng.permutation(9)
    moved = Records(rows.take(order))
    np.testing.assert_array_equal(alone.total(moved, state, np.ones((1, 9), bool), GRID), whole)


def test_a_gradient_that_is_not_finite_counts_as_zero():
    query, rows, _, state = PerRecordGradients.example(np.random.default_rng(4), 5)
    inputs, target = rows.take(np.arange(5))
    broken = target.clone()
    broken[2] = float("nan")
    others = np.array([[True, True, False, True, True]])
    for bad in (Records((inputs, broken)),):
        found = query.total(bad, state, np.ones((1, 5), bool), GRID)
        assert np.abs(found - query.total(rows, state, others, GRID)).max() <= 8  # places differ, values do not


# -- plans and runs ---------------------------------------------------------------------------------------------------


def test_the_certificate_is_exact_and_its_strategy_on_a_grid():
    exact, plain = plan(), plan(arithmetic="float")
    (mechanism,) = exact.certificate.plan
    assert (exact.certificate.arithmetic, plain.certificate.arithmetic) == ("exact", "float")
    assert mechanism.noise.unit >= 2.0**-14
    assert exact.certificate.epsilon(1e-4) == pytest.approx(plain.certificate.epsilon(1e-4), rel=2e-3)
    assert exact.certificate.epsilon(1e-4) <= plain.certificate.epsilon(1e-4)


def test_what_kernels_do_with_places_is_declared_unless_there_is_one():
    assert plan().certificate.marks == (SAME_EVERYWHERE,)
    assert plan(chunk_size=1).certificate.marks == plan(arithmetic="float").certificate.marks == ()
    p, m = plan(), model()
    trained(p, m, 1)
    assert p.certificate.marks == (SAME_EVERYWHERE,)


@pytest.mark.parametrize("stop", [1, 5, 11])
@pytest.mark.parametrize("change", [{}, {"strategy": "dpsgd", "bands": None}], ids=["bandmf", "dpsgd"])
def test_a_restored_run_ends_where_the_first_one_does(tmp_path, stop, change):
    first, m = plan(**change), model()
    trained(first, m, stop)
    first.save(tmp_path / "c", m)
    again, other = plan(**change), model()
    again.restore(tmp_path / "c", other, (X, Y))
    assert torch.equal(trained(first, m), trained(again, other))
    assert again.certificate.marks == (SAME_EVERYWHERE,)


def test_without_noise_to_speak_of_both_arithmetics_train_alike():
    whole = {"strategy": "dpsgd", "bands": None, "batch_size": 60, "noise_multiplier": 1e-5, "learning_rate": 1.0}
    ends = [trained(plan(arithmetic=way, **whole), model()) for way in ("float", "exact")]
    assert torch.allclose(*ends, atol=1e-4)
    assert (ends[0] - torch.cat([p.detach().reshape(-1) for p in model().parameters()])).norm() > 0.1


def test_a_trainer_passes_it_on():
    trainer = PrivateTrainer(
        model(), LOSS, noise_multiplier=1.0, delta=1e-4, batch_size=10, steps=3, bands=2, arithmetic="exact"
    )
    assert trainer.fit((X, Y)).certificate_.arithmetic == "exact"
    with pytest.raises(InvalidInput, match="arithmetic must be"):
        plan(arithmetic="decimal")
