"""Forty newcomers' mistakes: each is told in one line, and nothing is charged."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tacit.errors import TacitError
from tacit.ledger import Ledger
from tacit.noise import Strategy, square_root
from tacit.torch import EarlyStopping, PrivateTrainer, RecordLoss, TrainingPlan

X, Y = torch.randn(60, 6, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
LOSS = nn.CrossEntropyLoss()
PLAN = {"epsilon": 3.0, "delta": 1e-3, "batch_size": 10, "steps": 4, "bands": 2, "clip_norm": 1.0, "learning_rate": 0.1}


def fit(ledger, model=None, loss=LOSS, data=(X, Y), *, shown=None, metrics=None, fitted=(), **change):
    model = nn.Linear(6, 2) if model is None else model
    trainer = PrivateTrainer(model, loss, ledger=ledger, **{**PLAN, **change})
    return trainer.fit(data, evaluate_on=shown, metrics=metrics, **dict(fitted))


def loop(ledger, use, **change):
    return use(TrainingPlan(60, ledger=ledger, **{**PLAN, **change}))


class Streamed(IterableDataset):
    def __iter__(self):
        return iter([(X[0], Y[0])])


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 2)
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        return self.head(x)


class Rows(torch.utils.data.Dataset):
    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 60

    def __getitem__(self, i):
        return self.item(i)


def lbfgs(parameters):
    return torch.optim.LBFGS(parameters)


def plateau(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


SGD = {"optimizer": lambda p: torch.optim.SGD(p, lr=0.1)}
MISTAKES = {
    "no delta": (lambda b: fit(b, delta=None), "delta is missing"),
    "delta of one": (lambda b: fit(b, delta=1.0), "between 0 and 1"),
    "epsilon as a word": (lambda b: fit(b, epsilon="high"), "epsilon must be a real number"),
    "epsilon below zero": (lambda b: fit(b, epsilon=-1.0), "epsilon must be positive"),
    "epsilon and noise": (lambda b: fit(b, noise_multiplier=1.0), "either epsilon or noise_multiplier"),
    "neither": (lambda b: fit(b, epsilon=None), "either epsilon or noise_multiplier"),
    "epochs and steps": (lambda b: fit(b, epochs=2), "either epochs or steps"),
    "more than all records": (lambda b: fit(b, batch_size=61), "exceeds the 60 records"),
    "too many bands": (lambda b: fit(b, bands=9), "lower bands or batch_size"),
    "a batch of none": (lambda b: fit(b, batch_size=0), "batch_size must be a positive integer"),
    "momentum of one": (lambda b: fit(b, momentum=1.0), "below 1"),
    "rates too few": (lambda b: fit(b, learning_rate=[0.1, 0.2]), "one for each of the 4 steps"),
    "a clip of zero": (lambda b: fit(b, clip_norm=0.0), "clip_norm must be positive"),
    "unknown relation": (lambda b: fit(b, adjacency="neighbours"), "zero-out"),
    "unknown strategy": (lambda b: fit(b, strategy="adam"), "dpsgd"),
    "no spectrum": (lambda b: fit(b, strategy="noisecurve"), "hessian_spectrum"),
    "a strategy of other steps": (lambda b: fit(b, strategy=Strategy(square_root(9, 2))), "9 columns for 4 steps"),
    "a seed of minus one": (lambda b: fit(b, random_state=-1), "random_state"),
    "no module": (lambda b: fit(b, model=lambda x: x), "torch.nn.Module"),
    "batch normalisation": (
        lambda b: fit(b, model=nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2))),
        "use nn.GroupNorm or nn.LayerNorm",
    ),
    "nothing to train": (lambda b: fit(b, model=nn.Linear(6, 2).requires_grad_(False)), "nothing to train"),
    "lazy layers": (lambda b: fit(b, model=nn.LazyLinear(2)), "run the model once"),
    "a counting model": (lambda b: fit(b, model=Mean(), vectorised=False), "keeps state between calls"),
    "other inputs": (lambda b: fit(b, data=(X[:, :4], Y)), "shapes and types of the records"),
    "float labels": (lambda b: fit(b, data=(X, Y.float())), "shapes and types of the records"),
    "no labels": (lambda b: fit(b, data=X), "RecordLoss"),
    "unequal lengths": (lambda b: fit(b, data=(X, Y[:7])), "differ in length"),
    "text": (lambda b: fit(b, data=(["a"] * 60, Y)), "must hold numbers"),
    "text in a dataset": (lambda b: fit(b, data=Rows(lambda i: ("word", int(Y[i])))), "first 5 items can be used"),
    "text in a dict": (lambda b: fit(b, data={"x": X, "y": Y, "words": ["a"] * 60}), "must hold numbers"),
    "a target without its name": (lambda b: fit(b, data={"input": X, "outcome": Y}), "name it 'labels'"),
    "a loader": (lambda b: fit(b, data=DataLoader(TensorDataset(X, Y))), r"pass its \.dataset"),
    "a stream": (lambda b: fit(b, data=Streamed()), r"use one with len\(\)"),
    "a loss class": (lambda b: fit(b, loss=nn.CrossEntropyLoss), "make one of it"),
    "a loss that is a word": (lambda b: fit(b, loss="mse"), "callable"),
    "no loss at all": (lambda b: fit(b, loss=None), "fails on the records|no loss"),
    "an optimiser, not a function": (
        lambda b: fit(b, optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)),
        "function of the parameters",
    ),
    "an optimiser with a closure": (lambda b: fit(b, optimizer=lbfgs), "closure"),
    "another model's optimiser": (
        lambda b: fit(b, optimizer=lambda p: torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)),
        "holds none of the model's",
    ),
    "a scheduler alone": (lambda b: fit(b, scheduler=plateau), "learning_rate="),
    "a scheduler that asks": (lambda b: fit(b, scheduler=plateau, **SGD), "takes no argument"),
    "callbacks that are none": (lambda b: fit(b, fitted={"callbacks": ["stop"]}), "list of functions"),
    "metrics in a list": (lambda b: fit(b, shown=(X, Y), metrics=[LOSS]), "dict of functions"),
    "regression without a metric": (
        lambda b: fit(b, nn.Linear(6, 1), nn.MSELoss(), (X, X[:, :1]), shown=(X, X[:, :1])),
        "metrics=",
    ),
    "evaluation of another form": (lambda b: fit(b, shown=(X[:, :4], Y)), "same form as the training data"),
    "resume without a file": (lambda b: fit(b, fitted={"resume": True}), "pass checkpoint="),
    "other records than planned": (lambda b: loop(b, lambda p: next(p.batches((X[:50], Y[:50])))), "60 records"),
    "a batch of one's own": (
        lambda b: loop(b, lambda p: p.step(nn.Linear(6, 2), LOSS, (X, Y))),
        "not drawn by the plan",
    ),
    "add/remove without n": (lambda b: fit(b, adjacency="add-remove"), "public guess"),
    "a changed plan": (lambda b: loop(b, lambda p: setattr(p, "clip_norm", 9.0)), "cannot be changed"),
    "a copied plan": (lambda b: loop(b, __import__("copy").copy), "not copied"),
    "patience of zero": (lambda b: EarlyStopping(patience=0), "patience"),
    "a record loss of a word": (lambda b: fit(b, loss=RecordLoss("loss")), "fails on the records"),
}


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_a_mistake_costs_nothing_and_is_told_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    ledger = Ledger(tmp_path / "b.ledger", 100.0, 1e-1, adjacency="zero-out")
    make, words = MISTAKES[name]
    np.random.seed(0)  # noqa: NPY002
    warnings.simplefilter("ignore")  # torch's own, of lazy layers; pytest restores the filters
    with pytest.raises((TacitError, TypeError, AttributeError), match=words) as caught:
        make(ledger)
    assert "\n" not in str(caught.value)
    assert not ledger.entries()


def test_there_are_forty():
    assert len(MISTAKES) >= 40
