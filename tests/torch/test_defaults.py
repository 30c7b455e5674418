"""Defaults: the rule's numbers, the pilot release's sensitivity, its price, and that they train."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from tacit.accounting import certify, gdp_mu
from tacit.errors import MechanismMismatch
from tacit.ledger import Ledger
from tacit.mechanism import Plan
from tacit.torch import PrivateTrainer, Records, TrainingPlan
from tacit.torch.defaults import default_batch_size, default_epochs, step_length
from tacit.torch.gradients import PerRecordGradients
from tacit.torch.objective import Objective
from tacit.torch.pilot import BINS, LOWEST, SHARE, TYPICAL, GradientNorms, median_norm

LOSS = nn.CrossEntropyLoss()


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y = torch.tensor(X / 16, dtype=torch.float32)[order], torch.tensor(y)[order]
    return (X[:1400], y[:1400]), (X[1400:], y[1400:])


# -- how much is read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "given", "expected"),
    [
        (10_000, {}, (500, 400)),
        (50_000, {}, (2500, 400)),
        (1_000_000, {}, (11180, 401)),
        (10_000, {"epochs": 5}, (125, 400)),
        (10_000, {"steps": 100}, (2000, 100)),
        (10_000, {"batch_size": 1000}, (1000, 200)),
        (10_000, {"batch_size": 100, "epochs": 1}, (100, 100)),
        (30, {}, (2, 300)),
        (1, {"steps": 3}, (1, 3)),
    ],
)
def test_batches_and_epochs(n, given, expected):
    plan = TrainingPlan(n, noise_multiplier=1.0, delta=1e-6, strategy="dpsgd", **given)
    assert (plan.batch_size, plan.n_steps) == expected


def test_fewer_epochs_of_many_records():
    assert default_epochs(50_000) == 20
    assert default_epochs(200_000) == 10
    assert default_batch_size(5, steps=1) == 5


# -- how far a step goes --------------------------------------------------------------------------------------------


def test_the_rule_by_hand():
    plan = TrainingPlan(10_000, noise_multiplier=3.0, delta=1e-6, strategy="dpsgd")
    noise = 3.0 * math.sqrt(50_000) / 500
    assert step_length(plan.noise, 400, 500, 50_000) == pytest.approx(12 / noise)
    assert step_length(plan.noise, 100, 500, 50_000) == pytest.approx(24 / noise)
    assert step_length(plan.noise, 400, 500, 10) == 30
    correlated = TrainingPlan(10_000, noise_multiplier=3.0, delta=1e-6, bands=4)
    assert step_length(correlated.noise, 400, 500, 50_000) > 12 / noise


def test_the_rate_does_not_depend_on_the_scale_of_loss_or_clip():
    """ρ·G = rate·clip·G is what the rule fixes: a loss ten times as large takes the same steps."""
    plan = TrainingPlan(1000, epsilon=3.0, delta=1e-5, strategy="dpsgd")
    for norm in (0.1, 4.0, 300.0):
        moved = plan.rates_for(norm, 500)[0] * plan.clip_for(norm) * norm
        assert moved == pytest.approx(step_length(plan.noise, 400, 50, 500))
    given = TrainingPlan(1000, epsilon=3.0, delta=1e-5, strategy="dpsgd", learning_rate=0.3, clip_norm=2.0)
    assert (given.rates_for(4.0, 500)[5], given.clip_for(4.0), given.has_pilot) == (0.3, 2.0, False)


# -- the pilot release ----------------------------------------------------------------------------------------------


def test_the_median_of_a_histogram():
    counts = np.zeros(BINS)
    counts[-LOWEST + 2] = 100.0  # norms from 4 to 8
    assert median_norm(counts, 1.0) == pytest.approx(4 * math.sqrt(2))
    counts[-LOWEST + 3] = 300.0
    assert 8 < median_norm(counts, 1.0) < 16
    assert median_norm(np.full(BINS, 5.0), 10.0) == TYPICAL
    assert median_norm(np.full(BINS, -5.0), 1.0) == TYPICAL


def test_each_record_is_one_in_one_bin():
    """The sensitivity: whatever a gradient is, its record adds one to one bin, or nothing."""
    model = nn.Linear(2, 1, bias=False)
    scale = torch.tensor([0.0, 1e-30, 1e-3, 1.0, 1e3, 1e18, float("inf"), float("nan")])
    data = Records((torch.stack([scale, scale], 1), torch.ones(8, 1)))
    query = GradientNorms(PerRecordGradients(Objective(model, nn.L1Loss()), 1.0))
    theta = np.full((1, 2), 0.3, np.float32)
    own = query.contributions(data, theta)[0]
    assert set(own.sum(axis=1)) <= {0.0, 1.0}
    assert set(own.ravel()) <= {0.0, 1.0}
    assert not own[6:].any()
    members = np.ones((1, 8), bool)
    np.testing.assert_array_equal(query.total(data, theta, members)[0], own.sum(axis=0))
    members[0, 3] = False
    assert np.abs(query.total(data, theta, members)[0] - own.sum(axis=0)).sum() == 1


def test_the_pilot_is_in_the_certificate_and_cheap():
    how = {"epsilon": 2.0, "delta": 1e-5, "batch_size": 100, "steps": 100}
    plan, without = TrainingPlan(2000, pilot=True, **how), TrainingPlan(2000, **how)
    descent, pilot = plan.certificate.plan.parts
    assert (descent.label, pilot.label, pilot.steps) == ("descent", "pilot", 1)
    assert plan.certificate.epsilon(1e-5) <= 2.0
    assert plan.noise_multiplier > without.noise_multiplier
    assert plan.noise_multiplier < 1.002 * without.noise_multiplier
    alone = certify(Plan.of(descent), delta=1e-5).epsilon(1e-5)
    assert alone < plan.certificate.epsilon(1e-5)
    assert certify(pilot, delta=1e-5).mu == pytest.approx(SHARE * gdp_mu(2.0, 1e-5))
    assert plan.epsilon_so_far(0) == 0
    assert plan.epsilon_so_far(1) >= certify(pilot, delta=1e-5).epsilon(1e-5)


def test_the_pilot_finds_the_scale(digits):
    (X, y), _ = digits
    found = []
    for scale in (0.01, 1.0, 100.0):
        torch.manual_seed(0)
        plan, model = (
            TrainingPlan(1400, epsilon=8.0, delta=1e-5, steps=5, random_state=0, pilot=True),
            nn.Linear(64, 10),
        )
        for batch in plan.batches((X * scale, y)):
            plan.step(model, LOSS, batch)
            break
        found.append(plan.start_.median_norm)
    assert 30 < found[2] / found[1] < 300
    assert found[0] < found[1]


def test_a_pilot_happens_once_also_after_resuming(digits, tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    ledger = Ledger(tmp_path / "b.ledger", 50.0, 1e-2, adjacency="zero-out")
    released = []
    total = GradientNorms.total
    monkeypatch.setattr(GradientNorms, "total", lambda *a, **k: (released.append(1), total(*a, **k))[1])
    how = {"epsilon": 4.0, "delta": 1e-5, "steps": 6, "random_state": 0, "ledger": ledger, "checkpoint_every": 1}

    def stop(progress):
        if progress.step == 3:
            raise KeyboardInterrupt

    def trainer(path):
        torch.manual_seed(0)
        return PrivateTrainer(nn.Linear(64, 10), LOSS, checkpoint=path, **how)

    whole = trainer(tmp_path / "a").fit(digits[0])
    broken = trainer(tmp_path / "b")
    with pytest.raises(KeyboardInterrupt):
        broken.fit(digits[0], callbacks=[stop])
    again = trainer(tmp_path / "b").fit(digits[0], resume=True)
    assert torch.equal(whole.model.weight, again.model.weight)
    assert len(released) == 2
    assert len(ledger.entries()) == 2
    assert ledger.entries()[-1].digest == again.certificate_.digest


def test_a_second_pilot_is_refused(digits):
    plan, model = TrainingPlan(1400, epsilon=4.0, delta=1e-5, steps=5, pilot=True), nn.Linear(64, 10)
    for batch in plan.batches(digits[0]):
        plan.step(model, LOSS, batch)
        break
    with pytest.raises(MechanismMismatch):
        plan._run.release_pilot(GradientNorms(plan._query), np.zeros(650, np.float32))


# -- they train -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.25, 1.0, 20.0])
@pytest.mark.parametrize("arithmetic", ["float", "exact"])
def test_nothing_but_the_promise_is_needed(digits, scale, arithmetic):
    """Digits at any scale of the inputs; the fixed rate 0.1 and clip 1 fail at one end or the other."""
    if arithmetic == "exact" and scale != 1.0:
        return
    (X, y), (shown, labels) = digits
    torch.manual_seed(0)
    trainer = PrivateTrainer(nn.Linear(64, 10), LOSS, epsilon=8.0, delta=1e-5, random_state=0, arithmetic=arithmetic)
    trainer.fit((X * scale, y), evaluate_on=(shown * scale, labels))
    assert trainer.history_[-1].metrics["accuracy"] > 0.85
    assert trainer.certificate_.epsilon(1e-5) <= 8.0
