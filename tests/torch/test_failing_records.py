"""One record cannot end a run: what fails counts as zero, and the others' sum keeps its bits."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from summing import Summed
from torch import nn

from tacit.errors import InvalidInput
from tacit.torch import PrivateTrainer, TrainingPlan
from tacit.torch.objective import Objective
from tacit.torch.records import Records

torch.set_num_threads(1)
G = torch.Generator().manual_seed(0)
X = torch.randn(40, 6, generator=G)
HALF = (torch.rand(40, 1, generator=G) > 0.5).float()
LABELS, TOKENS = torch.randint(0, 3, (40,), generator=G), torch.randint(0, 9, (40, 4), generator=G)
AT = 13  # the record that fails
HOW = {"noise_multiplier": 5.0, "delta": 1e-4, "batch_size": 20, "epochs": 1, "strategy": "dpsgd"}


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))


class Wrapped(nn.Module):
    """No chain of layers: vmap, or one record at a time."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)


def without_bias(*rest: nn.Module, out: int = 1) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, out, bias=False), *rest)


def put(part: torch.Tensor, value: object) -> torch.Tensor:
    out = part.clone()
    out[AT] = value
    return out


def total(model, loss, data, **how) -> np.ndarray:
    objective = Objective(model, loss)
    theta = objective.flatten(objective.trainable()).numpy()[None]
    torch.manual_seed(5)
    return Summed(objective, Records(data), 0.7, **how).total(theta, np.ones((1, 40), bool))[0]


WAYS = [
    pytest.param(lambda m: m, {}, id="chain"),
    pytest.param(lambda m: m, {"chunk_size": 7}, id="small chunks"),
    pytest.param(Wrapped, {}, id="vmap"),
    pytest.param(Wrapped, {"vectorised": False}, id="one by one"),
]
PROBABLE, LOGITS = nn.BCELoss(), nn.CrossEntropyLoss()


@pytest.mark.parametrize(("wrap", "how"), WAYS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, 3e38, -3e38])
def test_a_loss_that_raises_for_one_record_leaves_the_others_to_the_bit(wrap, how, value):
    """``nn.BCELoss`` raises on NaN. A record of zeros has no gradient here: that is the sum without it."""
    model = wrap(without_bias(nn.Sigmoid()))
    hostile = put(X, torch.tensor([value, -value, 0, 0, 0, 0]))
    found = total(model, PROBABLE, (hostile, HALF), **how)
    np.testing.assert_array_equal(found, total(model, PROBABLE, (put(X, 0.0), HALF), **how))


@pytest.mark.parametrize(("wrap", "how"), WAYS)
@pytest.mark.parametrize("label", [3, 10**9, -7])
def test_labels_beyond_the_classes_count_as_nothing(wrap, how, label):
    model = wrap(without_bias(out=3))
    found = total(model, LOGITS, (X, put(LABELS, label)), **how)
    np.testing.assert_array_equal(found, total(model, LOGITS, (put(X, 0.0), LABELS), **how))


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("token", [9, -1, 2**40])
def test_tokens_beyond_the_vocabulary_count_as_nothing(vectorised, token):
    """The last token is padding, without a gradient, and the head is frozen: such a record contributes nothing."""
    torch.manual_seed(1)
    model = Wrapped(nn.Sequential(nn.Embedding(9, 3, padding_idx=8), nn.Flatten(), nn.Linear(12, 3)))
    model.inner[2].requires_grad_(False)
    found = total(model, LOGITS, (put(TOKENS, token), LABELS), vectorised=vectorised)
    nothing = total(model, LOGITS, (put(TOKENS, 8), LABELS), vectorised=vectorised)
    np.testing.assert_array_equal(found, nothing)


@pytest.mark.parametrize(("wrap", "how"), WAYS)
def test_a_gradient_that_is_not_finite_leaves_the_others_to_the_bit(wrap, how):
    """Rows were cut out of the product, and a product of other shape rounds the others differently."""
    model = wrap(without_bias())
    found = total(model, nn.MSELoss(), (put(X, torch.nan), HALF), **how)
    np.testing.assert_array_equal(found, total(model, nn.MSELoss(), (put(X, 0.0), HALF), **how))


@pytest.mark.parametrize("how", [{}, {"chunk_size": 7}, {"vectorised": False}])
def test_dropout_of_the_others_does_not_know_of_a_record_that_fails(how):
    model = Wrapped(without_bias(nn.Dropout(0.5), nn.Sigmoid()))
    found = total(model, PROBABLE, (put(X, torch.nan), HALF), **how)
    np.testing.assert_array_equal(found, total(model, PROBABLE, (put(X, 0.0), HALF), **how))


def test_if_every_record_fails_the_sum_is_zero():
    found = total(without_bias(nn.Sigmoid()), PROBABLE, (torch.full_like(X, torch.nan), HALF))
    assert not found.any()


class Items(torch.utils.data.Dataset):
    """A dataset of one's own, in which one item is what ``odd`` makes of it."""

    def __init__(self, odd=None, augmented: bool = False) -> None:
        self.odd, self.augmented = odd, augmented

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int):
        noise = 0.1 * torch.randn(6) if self.augmented else 0.0
        if i == AT and self.odd is not None:
            return self.odd(i)
        return X[i] + noise, HALF[i]


def unreadable(i: int):
    torch.randn(100)  # a reader that fails has often drawn a different number of random numbers
    raise OSError(f"record {i} is damaged")


ODD = [unreadable, lambda i: "4217", lambda i: None, lambda i: (X[i],), lambda i: (X[i, :5], HALF[i])]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("how", [{}, {"chunk_size": 7}, {"vectorised": False}])
def test_a_record_that_cannot_be_read_counts_as_nothing(odd, how, augmented):
    model = Wrapped(without_bias())
    found = total(model, nn.MSELoss(), Items(odd, augmented), **how)
    nothing = total(model, nn.MSELoss(), Items(lambda i: (torch.zeros(6), HALF[i]), augmented), **how)
    np.testing.assert_array_equal(found, nothing)


@pytest.mark.parametrize("odd", ODD)
def test_a_run_with_a_record_that_cannot_be_read_ends_like_any_other(tmp_path, odd):
    plan = TrainingPlan(40, noise_multiplier=5.0, delta=1e-4, batch_size=20, steps=6, strategy="dpsgd")
    model = without_bias()
    for batch in plan.batches(Items(odd)):
        plan.step(model, nn.MSELoss(), batch)
        plan.save(tmp_path / "c", model)  # which reads every record, to know the data again
    assert plan.steps_done == 6


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("hostile", [torch.nan, 3e38])
def test_no_run_tells_by_its_end_whether_a_record_is_there(hostile, vectorised):
    """NaN through ``nn.BCELoss`` ended 54 of 60 runs, and 0 of 60 on the neighbour."""
    row = torch.tensor([hostile, -hostile, 0, 0, 0, 0])
    for _ in range(5):
        model = Wrapped(without_bias(nn.Sigmoid()))
        PrivateTrainer(model, PROBABLE, vectorised=vectorised, **HOW).fit((put(X, row), HALF))


def test_nothing_is_warned_about_a_record():
    """A warning is an output, too."""

    def loss(output, target):
        if float(target) > 100:
            warnings.warn("a large target", stacklevel=1)
        return (output - target).square().mean()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        total(without_bias(), loss, (X, put(HALF, 4217.0)), vectorised=False)
    assert not seen


# -- faults that are not a record's are told ------------------------------------------------------------------------


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 1)

    def forward(self, x):
        raise KeyError("no such layer")


def test_a_fault_of_the_model_is_told_before_a_step_also_with_a_dataset():
    with pytest.raises(InvalidInput, match="no such layer"):
        PrivateTrainer(Broken(), nn.MSELoss(), **HOW).fit(Items())
    with pytest.raises(InvalidInput, match="mat1 and mat2"):
        PrivateTrainer(nn.Linear(5, 1), nn.MSELoss(), **HOW).fit(Items(unreadable))


def test_a_dataset_of_which_nothing_can_be_read_is_told():
    class Nothing(Items):
        def __getitem__(self, i: int):
            raise KeyError("4217")

    with pytest.raises(InvalidInput, match="first 5 items") as caught:
        PrivateTrainer(nn.Linear(6, 1), nn.MSELoss(), **HOW).fit(Nothing())
    assert "4217" not in str(caught.value)


def test_a_loss_that_is_passed_later_is_tried_first():
    plan = TrainingPlan(40, noise_multiplier=5.0, delta=1e-4, batch_size=20, steps=3, strategy="dpsgd")
    model, batches = without_bias(), plan.batches((X, HALF))
    plan.step(model, nn.MSELoss(), next(batches))
    with pytest.raises(InvalidInput, match="multi-target"):
        plan.step(model, nn.NLLLoss(), next(batches))


def test_padding_is_a_record_that_the_model_can_read():
    """Batches are padded with made-up records: zeros, unless the dry run has shown that the model cannot read zeros."""

    def positive(output, target):
        return -torch.distributions.Gamma(2.0, output.exp().mean()).log_prob(target).sum()  # refuses zero

    model, rows = without_bias(), (X, HALF + 1)
    before = model[0].weight.detach().clone()
    plan = TrainingPlan(40, noise_multiplier=1e-3, delta=1e-4, batch_size=20, steps=1, strategy="dpsgd", chunk_size=64)
    batch = next(plan.batches(rows))
    plan.step(model, positive, batch)
    assert (before - model[0].weight).norm() > 0.01  # far more than noise
