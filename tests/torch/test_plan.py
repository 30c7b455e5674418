"""One plan: its certificate is the accountant's, its noise is C⁻¹Z, its batches are its own."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import sys
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import tacit
from tacit.accounting import certify
from tacit.errors import BudgetExhausted, InvalidInput, MechanismMismatch
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency, CorrelatedNoise, CyclicPoisson, Poisson
from tacit.noise import Strategy, optimise, prefix_sum, square_root
from tacit.release import SEEDED
from tacit.torch import TrainingPlan
from tacit.torch.marks import RECORDS_APART

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 2, (40,), generator=torch.Generator().manual_seed(1))
LOSS = nn.CrossEntropyLoss()


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


def plan(**change) -> TrainingPlan:
    settings = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 10, "steps": 12, "bands": 3, "random_state": 5}
    return TrainingPlan(change.pop("n", 40), **{**settings, **change})


def run(plan: TrainingPlan, model: nn.Module, data=(X, Y), **how) -> list[torch.Tensor]:
    seen = []
    for batch in plan.batches(data):
        plan.step(model, LOSS, batch, **how)
        seen.append(torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()]))
    return seen


# -- certificate ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "bands", "sigma"), [(2, 10, 2.8646), (8, 1, 0.6320)])
def test_the_noise_is_the_accountants(epsilon, bands, sigma):
    p = TrainingPlan(50000, epsilon=epsilon, delta=1e-5, batch_size=450, epochs=20, bands=bands)
    assert p.n_steps == 2223  # errata, E17
    assert p.noise_multiplier == pytest.approx(sigma, rel=1e-3)
    assert p.certificate.epsilon(1e-5) <= epsilon


def test_replace_one_costs_what_the_reference_says():
    p = TrainingPlan(50000, epsilon=5, delta=1e-5, batch_size=450, epochs=20, bands=10, adjacency="replace-one")
    assert p.noise_multiplier == pytest.approx(2.3888, rel=1e-3)


def test_what_is_certified_is_what_runs():
    p = plan()
    (mechanism,) = p.certificate.plan.parts
    assert mechanism.steps == 12
    assert mechanism.sampling == CyclicPoisson(3, 10 * 3 / 40)
    assert isinstance(mechanism.noise, CorrelatedNoise)
    np.testing.assert_allclose(p.noise.strategy.column_norms, 1.0, rtol=1e-12)
    assert p.certificate.marks == (SEEDED,)
    assert plan(random_state=None).certificate.marks == ()


def test_independent_noise_is_dp_sgd():
    p = plan(strategy="dpsgd", bands=None)
    (mechanism,) = p.certificate.plan.parts
    assert mechanism.sampling == Poisson(0.25)
    assert (p.bands, p.noise.strategy) == (1, None)


def test_bands_are_chosen_for_the_budget():
    p = TrainingPlan(4000, epsilon=6.0, delta=1e-5, batch_size=200, epochs=5)
    worse = TrainingPlan(4000, epsilon=6.0, delta=1e-5, batch_size=200, epochs=5, strategy="dpsgd")
    assert p.bands > 1
    cost = p.noise_multiplier * np.sqrt(p.noise.optimum.error)
    assert cost < 0.95 * worse.noise_multiplier * np.sqrt((p.n_steps + 1) / 2)


def test_noisecurve_takes_a_spectrum():
    eigenvalues = 1 / np.arange(1.0, 9.0)
    p = plan(strategy="noisecurve", spectrum=eigenvalues, learning_rate=0.5)
    q = plan(strategy="bandmf", learning_rate=0.5)
    assert p.noise.strategy is not None
    assert np.abs(p.noise.strategy.bands - q.noise.strategy.bands).max() > 1e-3
    with pytest.raises(InvalidInput, match="hessian_spectrum"):
        plan(strategy="noisecurve")


def test_momentum_and_schedules_change_the_strategy():
    plain = plan().noise.strategy.bands
    for change in ({"momentum": 0.9}, {"learning_rate": lambda t: 1.0 / (t + 1)}, {"weight_decay": 2.0}):
        assert np.abs(plan(**change).noise.strategy.bands - plain).max() > 1e-3, change


def test_a_strategy_of_ones_own_is_certified_by_its_own_columns():
    own = Strategy(2.0 * square_root(12, 3))  # columns of norm 2: four times the information per step
    p = plan(strategy=own)
    assert p.certificate.epsilon(1e-4) > 1.5 * plan(strategy=Strategy(square_root(12, 3))).certificate.epsilon(1e-4)
    assert plan(strategy=optimise(prefix_sum(12), bands=3)).bands == 3
    with pytest.raises(InvalidInput, match="10 columns for 12 steps"):
        plan(strategy=Strategy(square_root(10, 3)))


# -- what runs ------------------------------------------------------------------------------------------------------


class Silent(nn.Module):
    """A model whose loss has no gradient: what moves it is noise only."""

    def __init__(self, size: int = 5000) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self, x):
        return x + 0 * self.w.sum()


def test_the_noise_is_the_strategys():
    """C·(releases)/σ must be white: unit variance, no correlation between steps."""
    p = plan(clip_norm=0.5, noise_multiplier=3.0, learning_rate=1.0, steps=8)
    model = Silent()
    seen = np.stack(_iterates(p, model))
    sums = -np.diff(seen, axis=0, prepend=0.0) * p.batch_size
    Z = p.noise.strategy.to_dense() @ sums / (3.0 * 0.5)
    covariance = Z @ Z.T / Z.shape[1]
    assert np.abs(covariance - np.eye(8)).max() < 5 / np.sqrt(Z.shape[1])


def _iterates(p: TrainingPlan, model: nn.Module) -> list[np.ndarray]:
    out = []
    for batch in p.batches((X, torch.zeros(40, 3))):
        p.step(model, nn.MSELoss(), batch)
        out.append(model.w.detach().numpy().copy())
    return out


def test_without_noise_it_is_sgd_on_the_plans_batches():
    settings = {"momentum": 0.5, "weight_decay": 0.1, "learning_rate": lambda t: 0.5 / (t + 1)}
    p, q = (plan(noise_multiplier=1e-12, clip_norm=1e4, **settings) for _ in range(2))
    seen = run(p, linear())
    q.batches((X, Y))
    W, m = linear(), torch.zeros(8)
    for t in range(12):
        mask = q._run._session._channel(0)._draw(t)[0]
        W.zero_grad()
        nn.CrossEntropyLoss(reduction="sum")(W(X[mask]), Y[mask]).backward()
        g = torch.cat([w.grad.reshape(-1) for w in W.parameters()]) / 10  # the expected, not the realised size
        rate = 0.5 / (t + 1)
        m = 0.5 * m + g
        theta = torch.cat([w.detach().reshape(-1) for w in W.parameters()]) * (1 - rate * 0.1) - rate * m
        W.weight.data, W.bias.data = theta[:6].view(2, 3), theta[6:]
        torch.testing.assert_close(seen[t], theta, rtol=1e-4, atol=1e-5)


def test_results_do_not_depend_on_the_chunk():
    a, b = (run(plan(chunk_size=c), linear())[-1] for c in (1, 64))
    torch.testing.assert_close(
        a, b, rtol=0, atol=0.2
    )  # the sums differ in their last bits, so the noise is other noise
    quiet = [run(plan(chunk_size=c, noise_multiplier=1e-9), linear())[-1] for c in (1, 64)]
    torch.testing.assert_close(*quiet, rtol=1e-5, atol=1e-6)


def test_an_optimiser_of_ones_own_is_post_processing():
    model = linear()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    before = copy.deepcopy(model.state_dict())
    run(plan(), model, optimizer=optimizer)
    assert not torch.equal(before["weight"], model.weight)
    assert optimizer.state


def test_dropout_is_drawn_secretly_and_leaves_the_global_generator_alone():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2))
    start = copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = run(plan(noise_multiplier=1e-9), model)[-1]
    assert torch.equal(state, torch.get_rng_state())
    model.load_state_dict(start)
    torch.manual_seed(99)
    torch.testing.assert_close(run(plan(noise_multiplier=1e-9), model)[-1], first)
    model.load_state_dict(start)
    assert not torch.allclose(run(plan(noise_multiplier=1e-9, random_state=6), model)[-1], first)


def test_batches_follow_the_mechanism():
    p = plan(n=3000, batch_size=300, steps=9, random_state=1)
    p.batches((torch.zeros(3000, 3), torch.zeros(3000).long()))
    masks = np.stack([p._run._session._channel(0)._draw(t)[0] for t in range(9)])
    for j in range(3):
        assert not (masks[j] & masks[(j + 1) % 3]).any()  # groups take turns
    assert masks.sum(axis=1) == pytest.approx(np.full(9, 300), abs=6 * np.sqrt(300))
    assert len(set(masks.sum(axis=1))) > 1  # Poisson, not a fixed size


# -- refusals -------------------------------------------------------------------------------------------------------


def test_foreign_batches_are_refused():
    p, model = plan(), linear()
    for batch in p.batches((X, Y)):
        with pytest.raises(MechanismMismatch, match="not drawn by the plan"):
            p.step(model, LOSS, (X[:10], Y[:10]))
        p.step(model, LOSS, batch)
        with pytest.raises(MechanismMismatch, match="each batch once"):
            p.step(model, LOSS, batch)
        break
    other = plan()
    stolen = next(iter(other.batches((X, Y))))
    with pytest.raises(MechanismMismatch, match="not drawn by the plan"):
        p.step(model, LOSS, stolen)


def test_a_batch_that_is_not_used_is_noticed():
    with pytest.raises(MechanismMismatch, match=r"call plan\.step"):
        for _ in plan().batches((X, Y)):
            pass


def test_a_plan_runs_once_and_goes_on_where_it_stopped():
    p, model = plan(), linear()
    for batch in p.batches((X, Y)):
        p.step(model, LOSS, batch)
        if batch.step == 4:
            break
    assert p.steps_done == 5
    with pytest.raises(MechanismMismatch, match="other data"):
        p.batches((X + 1, Y))
    run(p, model, (X.clone(), Y.clone()))
    assert p.steps_done == 12
    with pytest.raises(BudgetExhausted, match="make another plan"):
        p.batches((X, Y))


def test_the_ledger_is_charged_before_a_record_is_read(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))

    class Watched(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 40

        def __getitem__(self, i: int):
            seen.append(i)
            return X[i], Y[i]

    seen: list[int] = []
    ledger = Ledger(tmp_path / "b.ledger", 1.0, 1e-4, adjacency="zero-out")
    p = plan(random_state=None, noise_multiplier=0.3, ledger=ledger)
    with pytest.raises(BudgetExhausted):
        next(iter(p.batches(Watched())))
    assert seen == [0, 1, 2, 3, 4]  # their shapes only, which are declared to be public
    cheap = plan(random_state=None, noise_multiplier=50.0, ledger=ledger)
    run(cheap, linear(), Watched())
    assert len(ledger.entries()) == 1


@pytest.mark.parametrize("seed", [-1, 1.5, True, "7"])
def test_a_seed_that_cannot_be_used_is_refused_before_the_ledger_is_charged(seed):
    with pytest.raises(InvalidInput, match="random_state must be None or a non-negative integer"):
        plan(random_state=seed)


def test_a_plan_lets_go_of_its_records_at_once():
    """Plan and session do not refer to each other in a circle: the records are freed without the garbage collector."""
    p, model, x = plan(), linear(), X.clone()
    for batch in p.batches((x, Y)):
        p.step(model, LOSS, batch)
        break
    held = weakref.ref(x)
    gc.disable()
    try:
        del p, x, batch
        assert held() is None
    finally:
        gc.enable()


def test_a_step_passes_few_files():
    """The flow of a step can be read: plan, sum, ways, layers or taps, objective, records; channel, streams, noise."""
    folder, files = os.path.dirname(tacit.__file__), set()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            files.add(os.path.relpath(frame.f_code.co_filename, folder))

    for model in (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), Around(linear())):
        p = plan()
        for batch in p.batches((X, Y)):
            sys.setprofile(note if batch.step == 1 else None)
            try:
                p.step(model, LOSS, batch)
            finally:
                sys.setprofile(None)
            if batch.step == 1:
                break
    assert len([name for name in files if name.startswith("torch")]) <= 12, sorted(files)
    assert len(files) <= 20, sorted(files)


class Around(nn.Module):
    """Not a chain of layers."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def test_trainable_parameters_stay_the_same_during_a_run():
    p, model = plan(), linear()
    turns = p.batches((X, Y))
    p.step(model, LOSS, next(turns))
    model.bias.requires_grad_(False)
    batch = next(turns)
    with pytest.raises(MechanismMismatch, match="freeze them before"):
        p.step(model, LOSS, batch)


def test_add_remove_keeps_n_to_itself():
    p = plan(adjacency="add-remove", n=50)  # 40 records, 50 guessed
    assert run(p, linear())
    (mechanism,) = p.certificate.plan.parts
    assert mechanism.sampling.groups.name == "INDEPENDENT"
    with pytest.raises(MechanismMismatch, match="the plan is for 50 records"):
        run(plan(n=50), linear())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 1.0}, "either epsilon or noise_multiplier"),
        ({"noise_multiplier": None}, "either epsilon or noise_multiplier"),
        ({"epochs": 2}, "either epochs or steps"),
        ({"batch_size": 41}, "exceeds"),
        ({"batch_size": 20}, "lower bands or batch_size"),
        ({"strategy": "adam"}, "dpsgd"),
        ({"bands": None}, "give bands"),
        ({"momentum": 1.0}, "below 1"),
        ({"learning_rate": [0.1, 0.2]}, "12 steps"),
        ({"learning_rate": 0.0}, "positive"),
        ({"learning_rate": "fast"}, "learning_rate"),
        ({"clip_norm": 0}, "clip_norm"),
        ({"clip_norm": float("nan")}, "clip_norm"),
        ({"delta": 0.0}, "delta"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"bands": 0}, "bands"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"adjacency": "nearby"}, "adjacency"),
        ({"spectrum": [-1.0], "strategy": "noisecurve"}, "eigenvalues"),
    ],
)
def test_bad_numbers_get_one_line(change, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        plan(**change)
    assert "\n" not in str(caught.value)


def test_plans_are_not_copied():
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="spend the budget"):
            copier(plan())


def test_more_bands_than_groups_can_fill_are_refused_before_any_work():
    with pytest.raises(InvalidInput, match="lower bands or batch_size"):
        plan(bands=9)


def test_the_certificate_is_reproducible_from_its_mechanism():
    p = plan(adjacency=Adjacency.REPLACE_ONE, random_state=None)
    assert certify(p.certificate.plan, delta=1e-4).epsilon(1e-4) == p.certificate.epsilon(1e-4)


def test_what_nobody_can_check_is_declared():
    """PyTorch's own layers and losses keep records apart; code of others might keep them in a global."""
    model = linear()
    own, custom, module = plan(), plan(), plan()
    run(own, model)
    assert own.certificate.marks == (SEEDED,)
    for batch in custom.batches((X, Y)):
        custom.step(model, lambda output, target: LOSS(output, target), batch)
        break
    assert RECORDS_APART in custom.certificate.marks

    run(module, Around(linear()))
    assert RECORDS_APART in module.certificate.marks
