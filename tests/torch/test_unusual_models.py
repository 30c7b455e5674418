"""Unusual models and calls: what is applied is what was passed, and refusals tell nothing about records."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch
from torch import nn

from tacit.errors import InvalidInput, MechanismMismatch
from tacit.torch import PrivateTrainer, TrainingPlan
from tacit.torch.gradients import PerRecordGradients
from tacit.torch.objective import Objective
from tacit.torch.records import Records

torch.set_num_threads(1)
G = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=G), torch.randint(0, 3, (60,), generator=G)
LOSS = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))


def total(model, loss, data, mask, C=1.0, **how) -> np.ndarray:
    objective = Objective(model, loss)
    summed = PerRecordGradients(objective, Records(data), C, **how)
    theta = objective.flatten(objective.trainable()).numpy()[None]
    return summed.total(theta, np.asarray(mask, bool)[None])[0]


def plan(n=60, **change) -> TrainingPlan:
    settings = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 10, "steps": 15, "bands": 4}
    return TrainingPlan(n, **{**settings, **change})


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def go(p, m, until=99, loss=LOSS, data=(X, Y), **how) -> None:
    for batch in p.batches(data):
        p.step(m, loss, batch, **how)
        if p.steps_done >= until:
            break


class Alone(nn.Module):
    """A model that is no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


def test_a_module_that_occurs_twice_in_a_chain_is_applied_twice():
    """named_children() leaves repeated modules out: relu shared by two places is applied once, silently."""
    torch.manual_seed(0)
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 6), relu, nn.Linear(6, 6), relu, nn.Linear(6, 3))
    fast = total(model, LOSS, (X, Y), [1] * 60)
    np.testing.assert_allclose(fast, total(model, LOSS, (X, Y), [1] * 60, vectorised=False), atol=1e-4)


def test_a_repeated_linear_layer_is_applied_twice():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3))
    fast = total(model, LOSS, (X, Y), [1] * 60)
    np.testing.assert_allclose(fast, total(model, LOSS, (X, Y), [1] * 60, vectorised=False), atol=1e-4)


def test_a_sequential_with_a_forward_of_its_own_is_no_chain():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model.forward = types.MethodType(lambda self, x: x + self[1](self[0](x)), model)
    fast = total(model, LOSS, (X, Y), [1] * 60)
    np.testing.assert_allclose(fast, total(model, LOSS, (X, Y), [1] * 60, vectorised=False), atol=1e-4)


def test_a_layer_that_was_exchanged_during_a_run_is_used():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    objective = Objective(model, LOSS)
    summed = PerRecordGradients(objective, Records((X, Y)), 1.0)
    model[1] = nn.Tanh()
    theta = objective.flatten(objective.trainable()).numpy()[None]
    found = summed.total(theta, np.ones((1, 60), bool))[0]
    np.testing.assert_allclose(found, total(model, LOSS, (X, Y), [1] * 60), atol=1e-4)


@pytest.mark.parametrize("what", ["model", "layer"])
def test_what_is_passed_to_step_moves(what):
    p, model = plan(), nn.Sequential(linear())
    go(p, model, 2)
    if what == "model":
        model = nn.Sequential(linear())
    else:
        model[0] = linear()
    before = model[0].weight.detach().clone()
    try:
        go(p, model, 4)
    except MechanismMismatch:
        return
    assert not torch.equal(before, model[0].weight)


@pytest.mark.parametrize("name", ["noise", "seed", "n_steps", "budget", "clip_norm", "adjacency"])
def test_a_plan_cannot_be_changed_after_it_has_begun(name):
    """plan.noise = other.noise makes plan.certificate say ε = 0.06 for a run of ε = 6.9; plan.seed = None unmarks."""
    p = plan(seed=1)
    go(p, linear(), 2)
    value = {"noise": plan(noise_multiplier=50.0).noise, "seed": None, "n_steps": 3, "adjacency": "add-remove"}
    with pytest.raises((AttributeError, MechanismMismatch)):
        setattr(p, name, value.get(name, 1.0))


def test_training_twice_is_certified_twice():
    """fit, then fit again (also after an exception): the model has seen two runs, certificate_ tells of one."""
    trainer = PrivateTrainer(linear(), LOSS, noise_multiplier=1.0, delta=1e-4, batch_size=10, epochs=1, bands=2)
    once = trainer.fit((X, Y)).certificate_.epsilon(1e-4)
    try:
        trainer.fit((X, Y))
    except (MechanismMismatch, InvalidInput):
        return
    assert trainer.certificate_.epsilon(1e-4) > once or trainer.certificate_.marks


@pytest.mark.parametrize("vectorised", [True, False])
def test_errors_of_distributions_do_not_show_records(vectorised):
    """torch.distributions says "(Tensor of shape …) … found invalid values: tensor(-4217.)": "shape" lets it through.

    One by one the record itself is shown, vectorised what the model says about every record of the chunk.
    """

    def loss(rate, count):
        return -torch.distributions.Poisson(rate.exp()).log_prob(count).sum()

    counts = torch.tensor([[-4217.0]] * 8)
    with pytest.raises(InvalidInput) as caught:
        total(nn.Linear(4, 1), loss, (X[:8], counts), [1] * 8, vectorised=vectorised)
    assert "4217" not in str(caught.value)
    assert "tensor(" not in str(caught.value)


@pytest.mark.parametrize("kind", [KeyError, AssertionError, ZeroDivisionError, OverflowError])
def test_every_exception_of_a_model_is_made_public_first(kind):
    class Raising(Alone):
        def forward(self, x):
            raise kind(f"{int(x[0, 0])}")

    with pytest.raises(Exception) as caught:
        total(Raising(), LOSS, (torch.full((8, 4), 4217.0), Y[:8]), [1] * 8, vectorised=False)
    assert "4217" not in str(caught.value)


def test_unequal_lengths_do_not_tell_n_under_add_remove():
    with pytest.raises(InvalidInput) as caught:
        plan(adjacency="add-remove").batches((X[:57], Y[:58]))
    assert "57" not in str(caught.value)


def test_no_records_at_all_is_not_told_under_add_remove():
    p = plan(adjacency="add-remove", batch_size=1, bands=1, strategy="dpsgd")
    go(p, linear(), 1, data=(X[:0], Y[:0]))


def test_a_batch_of_one_fails_no_more_than_a_batch_of_two():
    """F.group_norm counts values per channel over the batch: the chain passes for two records, raises for one."""

    def outcome(mask):
        try:
            total(nn.Sequential(nn.Linear(4, 3), nn.GroupNorm(3, 3)), LOSS, (X[:4], Y[:4]), mask)
        except InvalidInput:
            return "refused"
        return "done"

    assert outcome([1, 0, 0, 0]) == outcome([1, 1, 0, 0])


def test_bfloat16_models_train_or_are_refused_in_words():
    go(plan(), linear().bfloat16(), 2)


def test_parameters_of_a_sequential_itself_are_no_chain():
    model = nn.Sequential(linear())
    model.register_parameter("scale", nn.Parameter(torch.ones(3)))
    go(plan(), model, 1)


def test_frozen_batch_norm_works_in_the_trainer_as_its_message_says():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    PrivateTrainer(model, LOSS, noise_multiplier=1.0, delta=1e-4, batch_size=10, epochs=1, bands=2).fit((X, Y))


def test_tiny_epochs_are_one_step_or_refused_in_words():
    assert plan(steps=None, epochs=1e-12).n_steps == 1


@pytest.mark.parametrize(("steps", "bands"), [(1, 4), (5, 3), (6, 9), (9, 2)])
def test_rows_of_noise_are_those_of_the_strategy(steps, bands):
    class Nothing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4000, dtype=torch.float64))

        def forward(self, x):
            return (self.w * 0).sum() + x

    data = (torch.zeros(20, 1, dtype=torch.float64),) * 2
    p, m, rows = plan(20, noise_multiplier=2.0, batch_size=2, steps=steps, bands=bands, clip_norm=0.5), Nothing(), []
    for batch in p.batches(data):
        before = m.w.detach().clone()
        p.step(m, lambda out, y: (out - y).sum(), batch)
        rows.append(((before - m.w.detach()) * p.batch_size / p.learning_rates[0]).numpy())
    C = np.eye(steps)
    if p.noise.strategy is not None:
        C = np.zeros((steps, steps))
        for j, column in enumerate(p.noise.strategy.bands):
            for i, value in enumerate(column[: steps - j]):
                C[j + i, j] = value
    Z = C @ np.array(rows) / (2.0 * 0.5)
    np.testing.assert_allclose(Z @ Z.T / 4000, np.eye(steps), atol=0.12)
