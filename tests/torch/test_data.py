"""Data and models as people have them: dicts, dataclasses, own losses, collate functions, workers, schedulers."""

from __future__ import annotations

import itertools
from collections import UserDict
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from tacit.errors import InvalidInput, MechanismMismatch
from tacit.ledger import Ledger
from tacit.torch import EarlyStopping, PrivateTrainer, RecordLoss, Records, TrainingPlan
from tacit.torch.marks import PUBLIC_SHAPES

TOKENS = torch.randint(0, 11, (60, 5), generator=torch.Generator().manual_seed(0))
MASK = (torch.rand(60, 5, generator=torch.Generator().manual_seed(1)) > 0.2).long()
LABELS = torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(2))
LOSS = nn.CrossEntropyLoss()
HOW = {"noise_multiplier": 0.5, "delta": 1e-3, "batch_size": 12, "steps": 4, "bands": 2, "random_state": 3}
HOW |= {"learning_rate": 0.1, "clip_norm": 1.0}


@dataclass
class Output:
    logits: torch.Tensor
    loss: torch.Tensor | None = None


class Text(nn.Module):
    """Called and answering as the models of transformers are."""

    def __init__(self, *, computes_loss: bool = True) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 4), nn.Linear(4, 3)
        self.computes_loss = computes_loss

    def forward(self, input_ids, attention_mask=None, labels=None):
        x = self.embedding(input_ids)
        weight = torch.ones_like(x[..., :1]) if attention_mask is None else attention_mask[..., None].to(x)
        logits = self.head((x * weight).sum(1) / 5)
        loss = None if labels is None or not self.computes_loss else LOSS(logits, labels)
        return Output(logits, loss)


class Keyed(Text):
    def forward(self, input_ids, attention_mask=None, labels=None):
        out = super().forward(input_ids, attention_mask, labels)
        return {"logits": out.logits, "loss": out.loss}


class Places(Text):
    """The same model called by place, with a plain loss: what all the others must equal."""

    def forward(self, input_ids, attention_mask):
        return super().forward(input_ids, attention_mask).logits


def made(cls=Text, **how) -> nn.Module:
    torch.manual_seed(0)
    return cls(**how)


class Rows(torch.utils.data.Dataset):
    def __init__(self, make) -> None:
        self.make = make

    def __len__(self) -> int:
        return 60

    def __getitem__(self, i):
        return self.make(i)


@dataclass
class Features:
    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: int
    other: None = None


def row(i):
    return {"input_ids": TOKENS[i], "attention_mask": MASK[i], "labels": LABELS[i]}


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def trained(model, loss, data, **how) -> torch.Tensor:
    PrivateTrainer(model, loss, **HOW).fit(data, **how)
    return weights(model)


@pytest.fixture(scope="module")
def by_place():
    return trained(made(Places), LOSS, (TOKENS, MASK, LABELS))


ALL = {"input_ids": TOKENS, "attention_mask": MASK, "labels": LABELS}
CASES = {
    "dict, own loss": (Text, None, ALL),
    "dict, keys": (Keyed, None, ALL),
    "user dict": (Text, None, UserDict(ALL)),
    "lists of numbers": (Text, None, {name: part.tolist() for name, part in ALL.items()}),
    "dict, loss function": (Text, LOSS, ALL),
    "label instead of labels": (Text, None, {"input_ids": TOKENS, "attention_mask": MASK, "label": LABELS}),
    "what the model does not read": (Text, None, {**ALL, "idx": torch.arange(60)}),
    "dataset of dicts": (Text, None, Rows(row)),
    "dataset of dicts of lists": (Text, None, Rows(lambda i: {k: v.tolist() for k, v in row(i).items()})),
    "dataset of dataclasses": (Text, None, Rows(lambda i: Features(**row(i)))),
    "list of dicts": (Text, None, [row(i) for i in range(60)]),
    "tuple, own loss": (Text, None, (TOKENS, MASK, LABELS)),
    "record loss by name": (
        Places,
        RecordLoss(lambda model, input_ids, attention_mask, labels: LOSS(model(input_ids, attention_mask), labels)),
        ALL,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_every_form_trains_the_same_parameters(name, by_place):
    cls, loss, data = CASES[name]
    assert torch.allclose(trained(made(cls), loss, data), by_place, atol=2e-6)


def test_collate_functions_see_one_item(by_place):
    sizes = []

    def collate(items):
        sizes.append(len(items))
        return {key: torch.stack([item[key] for item in items]) for key in items[0]}

    assert torch.allclose(trained(made(), None, Rows(row), collate_fn=collate), by_place, atol=2e-6)
    assert set(sizes) == {1}
    with pytest.raises(InvalidInput, match="leading axis"):
        trained(made(), None, [row(i) for i in range(60)], collate_fn=lambda items: items[0])


def test_workers_read_the_same(by_place):
    assert torch.allclose(trained(made(), None, Rows(row), num_workers=2), by_place, atol=2e-6)


def test_workers_leave_out_what_cannot_be_read():
    def odd(i):
        if i == 7:
            raise KeyError("4217")
        return row(i)

    alone, helped = (trained(made(), None, Rows(odd), num_workers=count) for count in (0, 2))
    assert torch.equal(alone, helped)


def test_a_loop_of_ones_own_with_named_records(by_place):
    plan, model = TrainingPlan(60, **HOW), made()
    for batch in plan.batches(Records(Rows(row), num_workers=1)):
        plan.step(model, None, batch)
    assert torch.allclose(weights(model), by_place, atol=2e-6)
    assert PUBLIC_SHAPES in plan.certificate.marks


def test_evaluation_of_named_records():
    t = PrivateTrainer(made(), None, **HOW).fit(ALL, evaluate_on=Rows(row))
    assert 0 <= t.history_[-1].metrics["accuracy"] <= 1
    t = PrivateTrainer(made(), LOSS, **HOW).fit(ALL, evaluate_on=ALL)
    with torch.no_grad():
        right = (t.model(TOKENS, MASK).logits.argmax(1) == LABELS).double().mean()
    assert t.history_[-1].metrics["accuracy"] == pytest.approx(float(right))


# -- told before the charge -----------------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    return Ledger(tmp_path / "b.ledger", 5000.0, 1e-1, adjacency="zero-out")


@pytest.mark.parametrize(
    ("model", "loss", "data", "words"),
    [
        (made, None, {"input_ids": TOKENS, "attention_mask": MASK}, "no loss"),
        (made, None, {"input_ids": TOKENS, "text": ["a"] * 60}, "must hold numbers"),
        (made, LOSS, {"input_ids": TOKENS, "category": LABELS}, "name it 'labels'"),
        (made, None, Rows(lambda i: {**row(i), "text": "hello"}), "none of the dataset's first 5 items"),
        (made, None, Rows(lambda i: row(i) if i % 2 else (TOKENS[i], LABELS[i])), "no loss"),
        (made, None, Rows(lambda i: {f"x{i}": TOKENS[i]}), "differ in names"),
        (made, None, Rows(lambda i: {"input_ids": TOKENS[i] if i % 2 else TOKENS[i].float(), f"y{i}": 1}), "differ"),
        (made, None, {"input_ids": TOKENS, "labels": LABELS[:5]}, "differ in length"),
        (lambda: nn.Linear(5, 3), None, (TOKENS.float(), LABELS), "fails on the records"),
        (lambda: nn.Linear(5, 3), None, TOKENS.float(), "no loss"),
        (lambda: made(computes_loss=False), None, ALL, "no loss"),
    ],
)
def test_what_does_not_fit_is_told_before_the_charge(ledger, model, loss, data, words):
    with pytest.raises(InvalidInput, match=words) as caught:
        PrivateTrainer(model(), loss, ledger=ledger, **HOW).fit(data)
    assert not ledger.entries()
    assert "\n" not in str(caught.value)


def test_mixed_shapes_are_told_before_the_charge(ledger):
    data = Rows(lambda i: {"input_ids": TOKENS[i][: 1 + i % 5], "labels": LABELS[i]})
    with pytest.warns(UserWarning, match="differ in shape.*pad them"):
        PrivateTrainer(made(), None, ledger=ledger, **HOW).fit(data)
    assert len(ledger.entries()) == 1


def test_in_a_loop_of_ones_own_too(ledger):
    plan = TrainingPlan(60, ledger=ledger, **HOW)
    with pytest.raises(InvalidInput, match="none of the dataset's first"):
        next(plan.batches(Rows(lambda i: {"text": "hello"})))
    assert not ledger.entries()


# -- schedulers and callbacks ---------------------------------------------------------------------------------------


def test_schedulers_step_with_every_step():
    seen = []
    t = PrivateTrainer(
        made(),
        None,
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, gamma=0.5),
        **HOW,
    )
    t.fit(ALL, callbacks=[lambda progress: seen.append(progress.step)])
    assert seen == [1, 2, 3, 4]
    with pytest.raises(InvalidInput, match="learning_rate="):
        PrivateTrainer(made(), None, scheduler=lambda o: None, **HOW)
    with pytest.raises(InvalidInput, match="takes no argument"):
        PrivateTrainer(
            made(),
            None,
            optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
            scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau,
            **HOW,
        ).fit(ALL)


def test_a_resumed_run_has_the_same_schedule(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))

    def trainer(model, path):
        return PrivateTrainer(
            model,
            None,
            optimizer=lambda p: torch.optim.Adam(p, lr=0.1),
            scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.7),
            checkpoint=path,
            checkpoint_every=1,
            **HOW,
        )

    def stop(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    whole, broken = made(), made()
    trainer(whole, tmp_path / "a").fit(ALL)
    with pytest.raises(KeyboardInterrupt):
        trainer(broken, tmp_path / "b").fit(ALL, callbacks=[stop])
    again = made()
    trainer(again, tmp_path / "b").fit(ALL, resume=True)
    assert torch.equal(weights(whole), weights(again))


def test_a_callback_stops_and_sees_what_was_spent():
    spent = []

    def stop(progress):
        spent.append(progress.epsilon)
        return progress.step == 3

    t = PrivateTrainer(made(), None, **HOW).fit(ALL, callbacks=[stop])
    assert t.plan_.steps_done == 3
    assert all(a <= b for a, b in itertools.pairwise(spent))
    assert 0 < spent[0] < spent[-1] <= t.certificate_.epsilon(1e-3)
    assert t.plan_.epsilon_so_far(4) == pytest.approx(t.certificate_.epsilon(1e-3), rel=1e-3)
    assert t.plan_.epsilon_so_far(0) == 0


def test_early_stopping_on_public_data():
    stops = EarlyStopping("bad", patience=2)
    metrics = {"bad": lambda output, target: 0.5}
    how = {**HOW, "steps": 40}
    t = PrivateTrainer(made(), None, **how).fit(ALL, evaluate_on=ALL, metrics=metrics, callbacks=[stops])
    assert [e.step for e in t.history_] == [5, 10, 15]
    with pytest.raises(InvalidInput, match="not among the metrics"):
        PrivateTrainer(made(), None, **how).fit(ALL, evaluate_on=ALL, metrics=metrics, callbacks=[EarlyStopping()])
    better = EarlyStopping("loss", patience=1, smaller=True)
    values = iter(np.linspace(1, 0, 100))
    t = PrivateTrainer(made(), None, **how).fit(
        ALL, evaluate_on=ALL, metrics={"loss": lambda output, target: next(values)}, callbacks=[better]
    )
    assert len(t.history_) == 8


def test_a_data_loader_is_told_what_to_do():
    with pytest.raises(MechanismMismatch, match=r"collate_fn=.*num_workers="):
        PrivateTrainer(made(), None, **HOW).fit(torch.utils.data.DataLoader(Rows(row)))
