"""The trainer: learns, evaluates on public data only, says what is wrong."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from tacit.errors import InvalidInput
from tacit.ledger import Ledger
from tacit.release import SEEDED
from tacit.torch import PrivateTrainer, TrainingPlan, trainer
from tacit.torch.marks import RECORDS_APART

LOSS = nn.CrossEntropyLoss()


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = (X / 16)[order], y[order]
    return (X[:1400], y[:1400]), (X[1400:], y[1400:])


def fitted(digits, epsilon: float, **change) -> PrivateTrainer:
    torch.manual_seed(0)
    settings = {"delta": 1e-4, "batch_size": 140, "epochs": 10, "bands": 4, "learning_rate": 2.0, "random_state": 0}
    out = PrivateTrainer(nn.Linear(64, 10), LOSS, epsilon=epsilon, **{**settings, **change})
    return out.fit(digits[0], evaluate_on=digits[1])


def test_it_learns_digits_and_more_with_more_budget(digits):
    good, poor = fitted(digits, 8.0), fitted(digits, 0.5)
    assert good.history_[-1].metrics["accuracy"] > 0.85
    assert poor.history_[-1].metrics["accuracy"] < good.history_[-1].metrics["accuracy"]
    assert [e.epoch for e in good.history_] == list(range(1, 11))
    assert good.certificate_.epsilon(1e-4) <= 8.0
    assert trainer.PUBLIC_EVALUATION in good.certificate_.marks
    assert not good.model.training


def test_the_certificate_can_be_read_before_anything_is_spent():
    t = PrivateTrainer(nn.Linear(3, 2), LOSS, epsilon=2.0, delta=1e-4, batch_size=10, epochs=3, bands=2)
    with pytest.raises(InvalidInput, match="make_plan"):
        _ = t.certificate_
    assert t.make_plan(100).certificate.epsilon(1e-4) <= 2.0


def test_regression_wants_a_metric():
    X, y = torch.randn(50, 3), torch.randn(50, 1)
    t = PrivateTrainer(
        nn.Linear(3, 1), nn.MSELoss(), noise_multiplier=1.0, delta=1e-3, batch_size=10, epochs=1, bands=2
    )
    with pytest.raises(InvalidInput, match="metrics="):
        t.fit((X, y), evaluate_on=(X, y))
    t.fit((X, y), evaluate_on=(X, y), metrics={"mse": nn.functional.mse_loss})
    assert set(t.history_[-1].metrics) == {"mse"}


def test_torch_optimisers_and_schedules(digits):
    t = fitted(digits, 8.0, optimizer=lambda p: torch.optim.Adam(p, lr=0.02))
    assert t.history_[-1].metrics["accuracy"] > 0.7


def test_add_remove_needs_a_public_guess():
    t = PrivateTrainer(
        nn.Linear(3, 2), LOSS, noise_multiplier=1.0, delta=1e-3, batch_size=5, epochs=1, bands=2, adjacency="add-remove"
    )
    data = torch.randn(30, 3), torch.zeros(30).long()
    with pytest.raises(InvalidInput, match="public guess"):
        t.fit(data)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "resnet"}, "torch.nn.Module"),
        ({"model": nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))}, "GroupNorm"),
        ({"model": nn.ReLU()}, "nothing to train"),
        ({"n_records": 7}, "leave it out"),
        ({"batch_size": 99}, "exceeds"),
    ],
)
def test_newcomers_mistakes(change, words):
    settings = {
        "model": nn.Linear(3, 2),
        "noise_multiplier": 1.0,
        "delta": 1e-3,
        "batch_size": 5,
        "epochs": 1,
        "bands": 2,
    }
    settings |= change
    with pytest.raises(InvalidInput, match=words):
        PrivateTrainer(settings.pop("model"), LOSS, **settings).fit((torch.randn(30, 3), torch.zeros(30).long()))


def test_options_are_in_the_signature():
    """A mistyped option is Python's own TypeError; what a plan takes a trainer takes, with the same default."""
    with pytest.raises(TypeError, match="sigma"):
        PrivateTrainer(nn.Linear(3, 2), LOSS, sigma=3.0, delta=1e-3, batch_size=5, epochs=1)
    trainer, plan = (inspect.signature(c).parameters for c in (PrivateTrainer, TrainingPlan))
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in (*trainer.values(), *plan.values()))
    for name in plan.keys() - {"n_records"}:
        assert trainer[name] == plan[name]
        assert f" {name}: " in PrivateTrainer.__doc__
        assert f" {name}: " in TrainingPlan.__doc__


def test_every_option_reaches_the_plan():
    other = {
        "epsilon": 3.0,
        "delta": 1e-3,
        "batch_size": 6,
        "steps": 9,
        "clip_norm": 0.5,
        "learning_rate": 0.3,
        "momentum": 0.4,
        "weight_decay": 0.2,
        "strategy": "noisecurve",
        "bands": 3,
        "spectrum": [2.0, 1.0],
        "adjacency": "replace-one",
        "unit": "visit",
        "chunk_size": 7,
        "vectorised": False,
        "note": "hello",
        "random_state": 4,
    }
    made = PrivateTrainer(nn.Linear(3, 2), LOSS, **other).make_plan(60)
    expected = TrainingPlan(60, **other)
    assert made.certificate == expected.certificate
    assert made.digest == expected.digest
    assert (made.note, made.vectorised, made.chunk_size, made.unit) == ("hello", False, 7, "visit")
    assert made.n_steps == 9


def test_the_ledgers_entry_says_what_the_models_certificate_says(tmp_path, monkeypatch):
    """What is declared about model and evaluation data is known before the charge, so the ledger has it, too."""
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    ledger = Ledger(tmp_path / "b.ledger", 500.0, 1e-2, adjacency="zero-out")
    data = torch.randn(30, 3), torch.zeros(30).long()
    how = {"noise_multiplier": 1.0, "delta": 1e-3, "batch_size": 5, "epochs": 1, "bands": 2, "ledger": ledger}
    custom = PrivateTrainer(nn.Linear(3, 2), lambda output, target: LOSS(output, target), **how)
    custom.fit(data, evaluate_on=data)
    assert set(custom.certificate_.marks) == {RECORDS_APART, trainer.PUBLIC_EVALUATION}
    assert ledger.entries()[-1].digest == custom.certificate_.digest
    plain = PrivateTrainer(nn.Linear(3, 2), LOSS, random_state=0, **how).fit(data)
    assert plain.certificate_.marks == (SEEDED,)
    assert ledger.entries()[-1].digest == plain.certificate_.digest


def test_progress_shows_steps_only(capsys):
    data = torch.randn(30, 3), torch.zeros(30).long()
    PrivateTrainer(
        nn.Linear(3, 2), LOSS, noise_multiplier=1.0, delta=1e-3, batch_size=5, epochs=1, bands=2, progress=True
    ).fit(data)
    shown = capsys.readouterr().err
    assert "private training" in shown
    assert "loss" not in shown
