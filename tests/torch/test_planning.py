"""Planning: what was chosen before it was fast, certified, remembered, and the noise that it predicts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tacit.accounting import pld
from tacit.errors import InvalidInput
from tacit.noise import identity, last_iterate, mean_path_loss, prefix_sum, sgd_workload, square_root
from tacit.torch import PrivateTrainer, TrainingPlan
from tacit.torch.planning import GAP, plan_noise
from tacit.torch.settings import TrainingSettings

LARGE = {"delta": 1e-5, "batch_size": 450, "epochs": 20}
KNOWN = [  # ε, relation, bands, σ/C: by bisection over every evaluation, before planning was fast
    (1.0, "zero-out", 5, 3.6849792),
    (2.0, "zero-out", 7, 2.4285084),
    (2.0, "add-remove", 7, 2.4285084),
    (2.0, "replace-one", 2, 2.3963468),
    (5.0, "zero-out", 20, 1.9254043),
    (8.0, "zero-out", 28, 1.5810699),
]
SMALL = {"delta": 1e-4, "batch_size": 10, "steps": 12}
EIGENVALUES = np.geomspace(1.0, 1e-3, 30)


@pytest.mark.parametrize(("epsilon", "adjacency", "bands", "sigma"), KNOWN)
def test_the_plans_of_the_slow_search(epsilon, adjacency, bands, sigma):
    s = TrainingSettings(50_000, epsilon=epsilon, adjacency=adjacency, **LARGE)
    assert s.bands == bands
    assert s.noise_multiplier == pytest.approx(sigma, rel=2e-6)
    assert 0.99999 * epsilon < s.certificate.epsilon(1e-5) <= epsilon
    assert s.noise.optimum.gap <= GAP


def test_few_evaluations_and_one_certificate(monkeypatch):
    """What planning costs is the number of composed distributions: counted, because time cannot be tested."""
    fine, coarse = [], []
    upper, tilted, lower = pld._upper, pld._tilted, pld._refined
    monkeypatch.setattr(pld, "_upper", lambda *a: (fine.append(a), upper(*a))[1])
    monkeypatch.setattr(pld, "_tilted", lambda *a, **k: (coarse.append(a), tilted(*a, **k))[1])
    plan_noise.cache_clear()
    lower.cache_clear()
    TrainingSettings(50_000, epsilon=2.03, **LARGE)
    assert len({call[1] for call in fine}) <= 2
    assert len(coarse) <= 40


def test_the_second_time_nothing_is_computed(monkeypatch):
    first = TrainingSettings(40, epsilon=2.0, **SMALL)
    monkeypatch.setattr("tacit.torch.planning._planned", lambda request: pytest.fail("planned twice"))
    again = TrainingSettings(40, epsilon=2.0, learning_rate=0.1, **SMALL)
    assert again.noise is first.noise
    assert plan_noise.cache_info().maxsize <= 64


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon": 2.5},
        {"delta": 2e-4},
        {"batch_size": 9},
        {"steps": 13},
        {"adjacency": "replace-one"},
        {"unit": "visit"},
        {"arithmetic": "exact"},
        {"momentum": 0.5},
        {"weight_decay": 0.1},
        {"learning_rate": [0.1 * (t + 1) for t in range(12)]},
        {"strategy": "dpsgd"},
        {"strategy": "noisecurve", "spectrum": [1.0, 0.1]},
        {"bands": 4},
    ],
)
def test_every_public_number_has_a_plan_of_its_own(change):
    """Two requests that differ share nothing; most differ in what is promised, too."""
    plain = TrainingSettings(40, epsilon=2.0, **SMALL)
    other = TrainingSettings(40, **{"epsilon": 2.0, **SMALL, **change})
    assert other.noise is not plain.noise


def test_a_planned_noise_cannot_be_changed():
    s = TrainingSettings(40, epsilon=2.0, bands=3, **SMALL)
    with pytest.raises((AttributeError, ValueError)):
        s.noise.strategy.bands[0, 0] = 9.0
    with pytest.raises(AttributeError):
        s.noise.noise_multiplier = 0.1


# -- predictions ----------------------------------------------------------------------------------------------------


def dense(C: np.ndarray) -> np.ndarray:
    T, b = C.shape
    out = np.zeros((T, T))
    for i in range(b):
        out[np.arange(i, T), np.arange(T - i)] = C[: T - i, i]
    return out


@pytest.mark.parametrize("how", [{}, {"momentum": 0.9}, {"weight_decay": 0.3, "learning_rate": 0.5}])
def test_the_predicted_noise_of_a_parameter_is_that_of_a_simulated_run(how):
    """θ runs by SGD on noise alone: its deviation at the end and on the way, by the covariance of C⁻¹Z."""
    s = TrainingSettings(40, noise_multiplier=2.0, clip_norm=0.5, bands=3, **SMALL, **how)
    (row,) = (p for p in s.predict() if p.strategy == "bandmf")
    noise = np.linalg.inv(dense(s.noise.strategy.bands)) * 2.0 * 0.5 / 10
    theta, velocity, seen = np.zeros(12), np.zeros(12), []
    for t in range(12):  # rows of coefficients of Z
        velocity = s.momentum * velocity + noise[t]
        theta = (1 - s.learning_rates[t] * s.weight_decay) * theta - s.learning_rates[t] * velocity
        seen.append(float(theta @ theta))
    assert row.final == pytest.approx(np.sqrt(seen[-1]), rel=1e-9)
    assert row.path == pytest.approx(np.sqrt(np.mean(seen)), rel=1e-9)


def test_the_path_noise_on_a_quadratic_by_brute_force():
    T, eta, C = 12, 0.5, square_root(12, 3)
    noise = np.linalg.inv(dense(C))
    losses = np.zeros(T)
    for mu in EIGENVALUES:
        theta = np.zeros(T)
        for t in range(T):
            theta = (1 - eta * mu) * theta + noise[t]
            losses[t] += mu * theta @ theta
    assert mean_path_loss(EIGENVALUES, eta, T).value(C) == pytest.approx(losses.mean(), rel=1e-9)


def test_the_last_iterate_of_a_mean_over_iterates():
    C = square_root(12, 3)
    sums = np.cumsum(np.linalg.inv(dense(C)), axis=0)
    assert last_iterate(prefix_sum(12)).value(C) == pytest.approx(float(sums[-1] @ sums[-1]))
    assert last_iterate(sgd_workload(12)).value(identity(12)) == pytest.approx(12.0)
    with pytest.raises(InvalidInput, match="prefix_sum"):
        last_iterate(mean_path_loss(EIGENVALUES, 0.5, 12))


def test_noisecurve_trades_noise_on_the_way_for_noise_at_the_end():
    s = TrainingSettings(
        2000, epsilon=6.0, delta=1e-5, batch_size=100, steps=120, strategy="noisecurve", spectrum=EIGENVALUES, bands=6
    )
    rows = {p.strategy: p for p in s.predict()}
    assert set(rows) == {"dpsgd", "bandmf", "noisecurve"}
    own = rows["noisecurve"]
    assert own.noise_multiplier == s.noise_multiplier
    assert own.path / own.final > rows["bandmf"].path / rows["bandmf"].final


def test_describe_names_what_runs():
    plan = TrainingPlan(2000, epsilon=4.0, delta=1e-5, batch_size=200, epochs=5)
    text = plan.describe()
    assert f"{plan.n_steps} steps" in text
    (running,) = (line for line in text.splitlines() if "<- runs" in line)
    assert running.split()[:3] == ["bandmf", str(plan.bands), f"{plan.noise_multiplier:.4f}"]
    assert "dpsgd" in text
    own = TrainingPlan(40, noise_multiplier=1.0, bands=3, **SMALL)
    assert "own" in TrainingPlan(40, strategy=own.noise.strategy, noise_multiplier=1.0, **SMALL).describe()
    model = nn.Linear(3, 2)
    stated = {"learning_rate": 0.1, "clip_norm": 1.0}  # without them a pilot release is paid for
    trainer = PrivateTrainer(model, nn.CrossEntropyLoss(), epsilon=4.0, delta=1e-5, batch_size=200, epochs=5, **stated)
    assert trainer.make_plan(2000).describe() == text
    assert torch.isfinite(model.weight).all()
