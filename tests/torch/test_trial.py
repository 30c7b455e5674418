"""What does not fit is found on made-up records: before the ledger is charged, without a trace, never wrongly."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from tacit.errors import BudgetExhausted, InvalidInput
from tacit.ledger import Ledger
from tacit.torch import PrivateTrainer, RecordLoss, TrainingPlan

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 6, generator=G), torch.randint(0, 2, (60,), generator=G)
LOSS = nn.CrossEntropyLoss()
HOW = {"noise_multiplier": 5.0, "delta": 1e-4, "batch_size": 20, "epochs": 1, "strategy": "dpsgd"}


@pytest.fixture
def ledger(tmp_path, monkeypatch) -> Ledger:
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    return Ledger(tmp_path / "b.ledger", 500.0, 1e-3, adjacency="zero-out")


class Wrapped(nn.Module):
    """No chain of layers: vmap."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


# -- found before it costs anything ---------------------------------------------------------------------------------


class Caching(Wrapped):
    first = None

    def forward(self, x):
        if self.first is None:
            self.first = x.detach().mean()
        return self.inner(x)


@pytest.mark.parametrize(
    ("model", "loss", "data", "words"),
    [
        (nn.Linear(5, 2), LOSS, (X, Y), r"mat1 and mat2 .*\(1x6 and 5x2\); make them fit"),
        (Wrapped(nn.Linear(5, 2)), LOSS, (X, Y), r"mat1 and mat2 .*\(1x6 and 5x2\); make them fit"),
        (nn.Linear(5, 2), LOSS, torch.utils.data.Subset(torch.utils.data.TensorDataset(X, Y), range(60)), "mat1"),
        (nn.Linear(5, 2), LOSS, list(zip(X, Y, strict=True)), "mat1"),
        (nn.Linear(6, 2), LOSS, (X, Y.float()), "Long.*; make them fit"),
        (nn.Linear(6, 1), nn.BCEWithLogitsLoss(), (X, Y.float()), "same as input size.*; make them fit"),
        (nn.Linear(6, 2), LOSS, X, "RecordLoss"),
        (nn.Linear(6, 2), nn.MSELoss(reduction="none"), (X, X[:, :2]), "one number"),
        (Caching(nn.Linear(6, 2)), LOSS, (X, Y), r"keeps state between calls \(first\)"),
        (nn.Sequential(nn.InstanceNorm1d(6, track_running_stats=True), nn.Linear(6, 2)).eval(), LOSS, (X, Y), "mixes"),
    ],
)
def test_what_does_not_fit_costs_nothing(ledger, model, loss, data, words):
    modes = [module.training for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    attributes = dict(vars(model))
    dice = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    with pytest.raises(InvalidInput, match=words) as caught:
        PrivateTrainer(model, loss, ledger=ledger, **HOW).fit(data)
    assert not ledger.entries()
    assert "\n" not in str(caught.value)
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert vars(model) == attributes
    assert torch.equal(dice[0], torch.get_rng_state())
    assert (dice[1] == np.random.get_state()[1]).all()  # noqa: NPY002
    assert dice[2] == random.getstate()


class Empty(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 0


class Broken(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int):
        raise KeyError("4217")


@pytest.mark.parametrize(
    ("shown", "metrics", "words"),
    [
        (X, None, "one part only"),
        ((X[:, :5], Y), None, r"mat1 and mat2 .*same form as the training data.*metrics="),
        ((X[:, :5], Y), {"m": nn.functional.cross_entropy}, "mat1 and mat2 .*same form as the training data"),
        ([(x[:5], y) for x, y in zip(X, Y, strict=True)], None, "mat1 and mat2"),
        ((X, X, Y), None, "positional argument"),
        ((X, Y.float()), None, "metrics="),
        ((X, Y), {"m": 3}, "dict of functions"),
        ((X, Y), [nn.functional.cross_entropy], "dict of functions"),
        ((X[:0], Y[:0]), None, "no records"),
        (Empty(), None, "no records"),
        (Broken(), None, r"first record \(KeyError\)"),
    ],
)
def test_evaluation_data_that_do_not_fit_cost_nothing(ledger, shown, metrics, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        PrivateTrainer(nn.Linear(6, 2), LOSS, ledger=ledger, **HOW).fit((X, Y), evaluate_on=shown, metrics=metrics)
    assert not ledger.entries()
    assert "4217" not in str(caught.value)


def test_before_the_ledger_is_asked_only_made_up_records_are_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    poor = Ledger(tmp_path / "p.ledger", 0.01, 1e-3, adjacency="zero-out")
    seen, read = [], []

    class Watching(Wrapped):
        def forward(self, x):
            seen.append(x)
            return self.inner(x)

    class Watched(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 60

        def __getitem__(self, i: int):
            read.append(i)
            return X[i], Y[i]

    trainer = PrivateTrainer(Watching(nn.Linear(6, 2)), LOSS, ledger=poor, vectorised=False, **HOW)
    with pytest.raises(BudgetExhausted):
        trainer.fit((X, Y), evaluate_on=(X, Y))
    assert seen
    assert not any(torch.equal(row, own) for x in seen for row in x for own in X)
    with pytest.raises(BudgetExhausted):
        trainer.fit(Watched())
    assert set(read) == {0, 1, 2, 3, 4}  # their shapes only, which are declared to be public
    assert not any(torch.equal(row, own) for x in seen for row in x for own in X)


# -- never wrongly --------------------------------------------------------------------------------------------------


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x, lengths):
        pack_padded_sequence(x, lengths, batch_first=True)  # refuses a length of zero
        return self.head(self.rnn(x)[1][0][-1])


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 2)

    def forward(self, x, mask):
        return self.head(x[mask].max().reshape(1, 1))  # nothing is left of a mask of zeros


class Locked(Wrapped):
    """Cannot be copied."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 2))
        self.lock = threading.Lock()


def gamma(output, target):
    return -torch.distributions.Gamma(output.exp(), 1.0).log_prob(target).sum()


def dirichlet(output, target):
    return -torch.distributions.Dirichlet(output.exp()).log_prob(target).sum()


TOKENS, SHARES = torch.randint(1, 9, (60, 4), generator=G), torch.softmax(X, dim=1)
ONE_BY_ONE = {"vectorised": False}


@pytest.mark.parametrize(
    ("model", "loss", "data", "how"),
    [
        (nn.Linear(6, 2), nn.CrossEntropyLoss(weight=torch.tensor([0.3, 0.7])), (X, Y), {}),
        (nn.Linear(6, 2), nn.CrossEntropyLoss(ignore_index=0), (X, Y), {}),
        (nn.Linear(6, 2), nn.CrossEntropyLoss(), (X, SHARES[:, :2]), {}),
        (nn.Linear(6, 1), nn.MSELoss(), (X.double(), X[:, :1]), {}),
        (nn.Linear(6, 1), nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0])), (X, Y[:, None].float()), {}),
        (nn.Sequential(nn.Linear(6, 6), nn.LogSoftmax(1)), nn.KLDivLoss(reduction="batchmean"), (X, SHARES), {}),
        (nn.Sequential(nn.Embedding(9, 3), nn.Flatten(), nn.Linear(12, 2)), LOSS, (TOKENS, Y), {}),
        (nn.Sequential(nn.Linear(6, 3), nn.GroupNorm(3, 3)), LOSS, (X, Y), {}),
        (nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2)).eval(), LOSS, (X, Y), {}),
        (nn.Sequential(nn.BatchNorm1d(6).eval(), nn.Linear(6, 2)), LOSS, (X, Y), {}),
        (nn.Linear(6, 6), RecordLoss(lambda call, x: (call(x) - x).square().mean()), X, {}),
        (nn.Linear(6, 1), gamma, (X, X[:, :1].abs() + 0.1), ONE_BY_ONE),
        (nn.Linear(6, 6), dirichlet, (X, SHARES), ONE_BY_ONE),
        (Packed(), LOSS, (torch.randn(60, 4, 2), TOKENS[:, 0].clamp(max=4), Y), ONE_BY_ONE),
        (Masked(), LOSS, (X, torch.ones(60, 6, dtype=torch.bool), Y), ONE_BY_ONE),
        (Locked(), LOSS, (X, Y), {}),
        (nn.Linear(6, 2), LOSS, (X, Y), {"adjacency": "add-remove", "n_records": 70}),
        (nn.Linear(6, 2), LOSS, list(zip(X, Y, strict=True)), {}),
    ],
)
def test_what_trains_is_not_refused(model, loss, data, how):
    before = torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])
    PrivateTrainer(model, loss, **HOW, **how).fit(data)
    assert not torch.equal(before, torch.cat([p.detach().reshape(-1) for p in model.parameters()]))


def test_evaluation_on_whatever_the_model_reads(ledger):
    dataset = torch.utils.data.Subset(torch.utils.data.TensorDataset(X, Y), range(5))
    for shown in ((X, Y), list(zip(X, Y, strict=True)), dataset, (X.numpy(), Y.numpy())):
        trainer = PrivateTrainer(nn.Linear(6, 2), LOSS, **HOW).fit((X, Y), evaluate_on=shown)
        assert 0 <= trainer.history_[-1].metrics["accuracy"] <= 1


# -- a loop of one's own --------------------------------------------------------------------------------------------


def test_a_model_that_does_not_fit_leaves_the_batch_for_one_that_does():
    """Noise that is correlated hides sums of one size: a failure must not fix it."""
    plan = TrainingPlan(60, noise_multiplier=5.0, delta=1e-4, batch_size=10, steps=2, bands=2)
    wrong, right = nn.Linear(5, 2), nn.Linear(6, 2)
    for batch in plan.batches((X, Y)):
        if batch.step == 0:
            with pytest.raises(InvalidInput, match="mat1 and mat2"):
                plan.step(wrong, LOSS, batch)
            assert plan.steps_done == 0
        plan.step(right, LOSS, batch)
    assert plan.steps_done == 2


def scheduled(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.LBFGS(model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    return optimizer


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        (lambda m: torch.optim.Adam(nn.Linear(6, 2).parameters()), r"none of the model's .*parameters\(\)"),
        (lambda m: torch.optim.SGD([m.frozen], lr=0.1), "none of the model's trainable"),
        (lambda m: torch.optim.LBFGS(m.parameters()), "closure.*Adam"),
        (scheduled, "closure.*Adam"),
        (lambda m: "adam", "must be a torch optimiser, got str"),
        (lambda m: torch.optim.Adam, "must be a torch optimiser"),
    ],
)
def test_optimisers_that_cannot_train_the_model_are_refused_before_a_step(ledger, optimizer, words):
    model = nn.Linear(6, 2)
    model.frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
    plan = TrainingPlan(60, noise_multiplier=5.0, delta=1e-4, batch_size=10, steps=2, bands=2)
    batch = next(plan.batches((X, Y)))
    made = optimizer(model)
    with pytest.raises(InvalidInput, match=words):
        plan.step(model, LOSS, batch, optimizer=made)
    assert plan.steps_done == 0
    plan.step(model, LOSS, batch)
    with pytest.raises(InvalidInput, match=words):
        PrivateTrainer(model, LOSS, optimizer=lambda p: made, ledger=ledger, **HOW).fit((X, Y))
    assert not ledger.entries()


def test_a_trainer_takes_functions_that_make_optimisers():
    model = nn.Linear(6, 2)
    with pytest.raises(InvalidInput, match="function of the parameters"):
        PrivateTrainer(model, LOSS, optimizer=torch.optim.Adam(model.parameters()), **HOW)


def test_what_an_optimiser_leaves_out_stays():
    model = nn.Linear(6, 2)
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    optimizer = torch.optim.SGD([model.bias], lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    plan = TrainingPlan(60, noise_multiplier=5.0, delta=1e-4, batch_size=10, steps=2, bands=2)
    for batch in plan.batches((X, Y)):
        plan.step(model, LOSS, batch, optimizer=optimizer)
        schedule.step()
    assert torch.equal(weight, model.weight)
    assert not torch.equal(bias, model.bias)


def test_lazy_layers_are_told_what_to_do():
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2))
    with pytest.raises(InvalidInput, match=r"0 is lazy .*batch of zeros first"):
        PrivateTrainer(model, LOSS, **HOW)
    plan = TrainingPlan(60, noise_multiplier=5.0, delta=1e-4, batch_size=10, steps=2, bands=2)
    batch = next(plan.batches((X, Y)))
    with pytest.raises(InvalidInput, match="batch of zeros first"):
        plan.step(model, LOSS, batch)
    model(torch.zeros(1, 6))
    plan.step(model, LOSS, batch)
