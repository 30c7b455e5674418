"""Per-record gradients by rules of layers equal those of vmap, for any module; a wrong rule is found, not used."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tacit.errors import InvalidInput
from tacit.torch.comparison import choose
from tacit.torch.gradients import PerRecordGradients
from tacit.torch.objective import Objective, RecordLoss
from tacit.torch.records import Records
from tacit.torch.taps import RULES, Factors, Looked, Rows, Tap, combined, register_tap
from tacit.torch.taps.factors import squared_norms
from tacit.torch.taps.tapped import known_layers
from tacit.torch.ways import Way, Ways

torch.set_num_threads(1)
COUNT, CLASSES, WORDS = 5, 3, 11
LOSS = nn.CrossEntropyLoss()


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(COUNT, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def tokens(length: int = 6) -> torch.Tensor:
    return torch.randint(0, WORDS, (COUNT, length), generator=torch.Generator().manual_seed(2))


def labels() -> torch.Tensor:
    return torch.arange(COUNT) % CLASSES


class Model(nn.Module):
    """Layers as attributes, and a function of them."""

    def __init__(self, forward, **layers: object) -> None:
        super().__init__()
        self.run = forward
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, *inputs):
        return self.run(self, *inputs)


class Residual(nn.Module):
    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.before, self.after = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        n, t, w = x.shape
        q, k, v = self.qkv(self.before(x)).view(n, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, w))
        return x + self.down(functional.gelu(self.up(self.after(x))))


class LoRA(nn.Module):
    """A frozen matrix and a product of two thin ones, of which the second starts at zero."""

    def __init__(self, width: int, rank: int = 2) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class Highway(nn.Module):
    """A parameter of its own beside a known layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.inner = nn.Parameter(torch.zeros(width)), nn.Linear(width, width)

    def forward(self, x):
        g = self.gate.sigmoid()
        return g * torch.tanh(self.inner(x)) + (1 - g) * x


def tied(weight_first: bool) -> nn.Module:
    table, head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS, bias=False)
    if weight_first:
        head.weight = table.weight
    else:
        table.weight = head.weight
    out = nn.Linear(WORDS, CLASSES)
    return Model(lambda s, x: s.out(torch.tanh(s.head(s.table(x))).mean(1)), table=table, head=head, out=out)


def twice() -> nn.Module:
    return Model(
        lambda s, x: s.b(torch.tanh(s.a(torch.tanh(s.a(x)))).mean(1)), a=nn.Linear(6, 6), b=nn.Linear(6, CLASSES)
    )


def attention(**how: object) -> nn.Module:
    layer = nn.MultiheadAttention(8, 2, **how)
    first = how.get("batch_first", False)

    def run(s, x):
        x = x if first else x.transpose(0, 1)
        y, weights = s.attend(x, x, x)
        y = y if first else y.transpose(0, 1)
        return s.out(torch.cat([y.mean(1), weights.mean(1)], dim=1))

    return Model(run, attend=layer, out=nn.Linear(8 + 6, CLASSES))


def crossed() -> nn.Module:
    def run(s, x):
        mask = torch.zeros(x.shape[0], 6, dtype=torch.bool)
        mask[:, 4:] = True
        causal = torch.zeros(3, 6, dtype=torch.bool)
        causal[0, 3:] = True
        y, _ = s.attend(x[:, :3], x, torch.tanh(x), key_padding_mask=mask, attn_mask=causal, need_weights=False)
        return s.out(y.mean(1))

    return Model(run, attend=nn.MultiheadAttention(8, 2, batch_first=True), out=nn.Linear(8, CLASSES))


def encoder(**how: object) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **how)
    return Model(
        lambda s, x: s.out(s.stack(x).mean(1)),
        stack=nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        out=nn.Linear(8, CLASSES),
    )


def decoder() -> nn.Module:
    layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return Model(lambda s, x: s.out(s.layer(x[:, :3], x).mean(1)), layer=layer, out=nn.Linear(8, CLASSES))


def convolutions(*layers: nn.Module, width: int) -> nn.Module:
    return Model(lambda s, x: s.out(s.body(x).flatten(1)), body=nn.Sequential(*layers), out=nn.Linear(width, CLASSES))


class Block(nn.Module):
    """Of a residual network with group norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.GroupNorm(2, width), nn.GroupNorm(2, width)

    def forward(self, x):
        return functional.relu(x + self.norm2(self.second(functional.relu(self.norm1(self.first(x))))))


def recurrent(kind: type[nn.RNNBase], **how: object) -> nn.Module:
    def run(s, x):
        x = x if s.rnn.batch_first else x.transpose(0, 1)
        begin = torch.full(
            (s.rnn.num_layers * (2 if s.rnn.bidirectional else 1), x.shape[0 if s.rnn.batch_first else 1], 4),
            0.2,
            dtype=x.dtype,
        )
        out, last = s.rnn(x) if s.rnn.batch_first else s.rnn(x, begin)
        last = last[1] if isinstance(last, tuple) else last
        return s.out((out[:, -1] if s.rnn.batch_first else out[-1]) + last.sum())

    layer = kind(6, 4, **{"batch_first": True, **how})
    return Model(run, rnn=layer, out=nn.Linear(8 if layer.bidirectional else 4, CLASSES))


def seen_in_eval(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return model.eval()


def text(*blocks: nn.Module) -> nn.Module:
    def run(s, x):
        h = s.words(x) + s.places(torch.arange(x.shape[1]))
        return s.out(s.norm(s.blocks(h)).mean(1))

    parts = {
        "words": nn.Embedding(WORDS, 8, padding_idx=0),
        "places": nn.Embedding(6, 8),
        "blocks": nn.Sequential(*blocks),
    }
    return Model(run, **parts, norm=nn.LayerNorm(8), out=nn.Linear(8, CLASSES))


PICTURES, SERIES, VOLUMES = rows(4, 6, 6), rows(4, 9), rows(2, 4, 4, 4)
MODELS = {
    "mlp": (rows(6), lambda: Model(lambda s, x: s.b(torch.relu(s.a(x))), a=nn.Linear(6, 9), b=nn.Linear(9, CLASSES))),
    "positions": (
        rows(7, 6),
        lambda: Model(lambda s, x: s.b(torch.tanh(s.a(x)).mean(1)), a=nn.Linear(6, 40), b=nn.Linear(40, CLASSES)),
    ),
    "few positions": (
        rows(2, 60),
        lambda: Model(lambda s, x: s.b(torch.tanh(s.a(x)).mean(1)), a=nn.Linear(60, 40), b=nn.Linear(40, CLASSES)),
    ),
    "no bias": (rows(6), lambda: Model(lambda s, x: s.a(x), a=nn.Linear(6, CLASSES, bias=False))),
    "transformer": (tokens(), lambda: text(Residual(), Residual())),
    "embedding bag": (
        tokens(),
        lambda: Model(lambda s, x: s.out(s.bag(x)), bag=nn.EmbeddingBag(WORDS, 8), out=nn.Linear(8, CLASSES)),
    ),
    "sum of a bag": (
        tokens(),
        lambda: Model(
            lambda s, x: s.out(s.bag(x)), bag=nn.EmbeddingBag(WORDS, 8, mode="sum"), out=nn.Linear(8, CLASSES)
        ),
    ),
    "tied": (tokens(), lambda: tied(True)),
    "tied the other way": (tokens(), lambda: tied(False)),
    "used twice": (rows(5, 6), twice),
    "adapters": (
        rows(4, 6),
        lambda: Model(lambda s, x: s.out(s.lora(x).mean(1)), lora=LoRA(6), out=nn.Linear(6, CLASSES)),
    ),
    "own parameter": (
        rows(6),
        lambda: Model(lambda s, x: s.out(s.way(s.way(x))), way=Highway(6), out=nn.Linear(6, CLASSES)),
    ),
    "attention": (rows(6, 8), lambda: attention(batch_first=True)),
    "attention, records second": (rows(6, 8), attention),
    "attention without bias": (rows(6, 8), lambda: attention(batch_first=True, bias=False)),
    "crossed attention": (rows(6, 8), crossed),
    "encoder": (rows(6, 8), encoder),
    "encoder in eval": (rows(6, 8), lambda: encoder(norm_first=True).eval()),
    "decoder": (rows(6, 8), decoder),
    "cnn": (
        PICTURES,
        lambda: convolutions(nn.Conv2d(4, 6, 3, stride=2), nn.GroupNorm(3, 6), nn.ReLU(inplace=True), width=24),
    ),
    "grouped": (
        PICTURES,
        lambda: convolutions(nn.Conv2d(4, 4, 3, groups=4, padding="same"), nn.Conv2d(4, 2, 1), width=72),
    ),
    "circular": (
        PICTURES,
        lambda: convolutions(nn.Conv2d(4, 2, 3, padding=1, padding_mode="circular"), nn.Tanh(), width=72),
    ),
    "series": (
        SERIES,
        lambda: convolutions(nn.Conv1d(4, 3, 3, dilation=2), nn.InstanceNorm1d(3, affine=True), width=15),
    ),
    "volumes": (
        VOLUMES,
        lambda: convolutions(nn.Conv3d(2, 3, 2), nn.InstanceNorm3d(3, affine=True), nn.GELU(), width=81),
    ),
    "residual": (
        PICTURES,
        lambda: Model(lambda s, x: s.out(s.block(x).mean((2, 3))), block=Block(4), out=nn.Linear(4, CLASSES)),
    ),
    "public statistics": (
        PICTURES,
        lambda: seen_in_eval(convolutions(nn.Conv2d(4, 3, 3), nn.BatchNorm2d(3), width=48)),
    ),
    "instance norm": (PICTURES, lambda: convolutions(nn.InstanceNorm2d(4, affine=True), nn.Conv2d(4, 1, 3), width=16)),
    "rms norm": (
        rows(5, 6),
        lambda: Model(lambda s, x: s.out(s.norm(x).mean(1)), norm=nn.RMSNorm(6), out=nn.Linear(6, CLASSES)),
    ),
    "one channel": (rows(1, 5, 5), lambda: convolutions(nn.GroupNorm(1, 1), nn.Conv2d(1, 2, 3), width=18)),
    "frozen below": (
        rows(6),
        lambda: Model(
            lambda s, x: s.b(torch.relu(s.a(x))), a=nn.Linear(6, 9).requires_grad_(False), b=nn.Linear(9, CLASSES)
        ),
    ),
    "lstm": (rows(4, 6), lambda: recurrent(nn.LSTM, num_layers=2, bidirectional=True)),
    "gru": (rows(4, 6), lambda: recurrent(nn.GRU)),
    "gru, steps first": (rows(4, 6), lambda: recurrent(nn.GRU, batch_first=False, num_layers=2, bias=False)),
    "rnn": (rows(4, 6), lambda: recurrent(nn.RNN, nonlinearity="relu")),
    "transposed": (PICTURES, lambda: convolutions(nn.ConvTranspose2d(4, 2, 2), nn.Conv2d(2, 1, 3), width=25)),
    "bilinear": (
        rows(6),
        lambda: Model(
            lambda s, x: s.out(torch.tanh(s.pair(x, x))), pair=nn.Bilinear(6, 6, 5), out=nn.Linear(5, CLASSES)
        ),
    ),
    "normalised weights": (
        rows(6),
        lambda: Model(
            lambda s, x: s.b(s.a(x)), a=nn.utils.parametrizations.weight_norm(nn.Linear(6, 4)), b=nn.Linear(4, CLASSES)
        ),
    ),
}


def clipped(objective: Objective, way: Way, data: object, share: float = 0.6) -> tuple[torch.Tensor, torch.Tensor]:
    """Clipped sum and squared norms; the bound is below some norms and above others."""
    at, device = objective.trainable(), objective.device()
    found = Ways(objective).gradients(way, at, data, 3)
    squares = torch.stack([g.squares() for g in found.values()]).sum(0)
    C = float(squares.sqrt().quantile(share))
    query = PerRecordGradients(objective, C, way=way, chunk_size=COUNT)
    out = torch.zeros(objective.size, dtype=query.sum_type, device=device)
    query.add_up(Records(data), at, torch.arange(COUNT).numpy(), out)
    return out, squares


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", MODELS)
def test_clipped_sums_equal_those_of_vmap(name, dtype):
    torch.manual_seed(0)
    inputs, make = MODELS[name]
    model = make().to(dtype)
    data = inputs.to(dtype) if inputs.is_floating_point() else inputs, labels()
    objective = Objective(model, LOSS)
    fast, squares = clipped(objective, Way("taps"), data)
    recurrent = any(isinstance(m, nn.RNNBase) for m in model.modules())  # fused kernels fail under vmap
    reference = Way("alone") if recurrent else Way("taps", frozenset(objective.names))
    slow, expected = clipped(objective, reference, data)
    tolerance = 1e-6 if dtype == torch.float64 else 2e-5
    assert (fast - slow).norm() <= tolerance * slow.norm()
    torch.testing.assert_close(squares, expected, rtol=2 * tolerance, atol=0)
    assert slow.norm() > 0


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", MODELS)
def test_the_trial_takes_the_rules(name):
    inputs, make = MODELS[name]
    torch.manual_seed(0)
    objective = Objective(make().double(), LOSS)
    way = choose(objective, (inputs, labels()))
    assert (way.kind, way.formed, way.checked) == ("taps", frozenset(), True)


def test_every_rule_is_exercised():
    seen = set[type]()
    for _, make in MODELS.values():
        seen |= {type(known.layer) for known in known_layers(make())}
    inner = {nn.modules.linear.NonDynamicallyQuantizableLinear}  # part of attention
    assert set(RULES) - inner - {nn.BatchNorm1d, nn.BatchNorm3d} <= seen


# -- factors --------------------------------------------------------------------------------------------------------


def test_gram_matrices_are_upper_bounds_in_float32():
    """Where positions cancel, rounding is far larger than what is left of the gradient."""
    torch.manual_seed(0)
    left, right = torch.randn(6, 50, 40), torch.randn(6, 50, 300)
    left[:, 1::2] = -left[:, ::2]
    right[:, 1::2] = right[:, ::2] * (1 + 1e-7 * torch.randn(6, 25, 300))
    factors = Factors(left, right)
    assert not Factors(left[:, :2], right[:, :2]).is_smaller_formed
    true = torch.bmm(left.double().transpose(1, 2), right.double()).flatten(1).square().sum(1)
    assert (Factors(left[:, :2], right[:, :2]).squares() >= 0).all()
    small = Factors(left.repeat(1, 1, 8)[:, :4], right[:, :4])
    exact = torch.bmm(small.left.double().transpose(1, 2), small.right.double()).flatten(1).square().sum(1)
    assert (small.squares() >= exact).all()
    assert (factors.squares() >= 0.99 * true).all()


def test_squared_norms_of_long_rows_do_not_saturate():
    """Within the bound that the shrinking of gradients covers; a sum of all of them in float32 is off by far more."""
    values = torch.full((1, 3_000_001), 1e-3)
    true = 3_000_001 * float(values[0, 0].double()) ** 2
    assert abs(float(squared_norms(values)) / true - 1) < 2.0**-16
    assert abs(float(torch.linalg.vector_norm(values, dim=1)) ** 2 / true - 1) > 2.0**-16


def test_uses_are_added_before_norms_are_taken():
    """Two uses that cancel: their norms alone would be far too long, those of half of them far too short."""
    torch.manual_seed(0)
    a, d = torch.randn(4, 3, 5), torch.randn(4, 3, 6)
    assert combined([Factors(d, a), Factors(-d, a)]).squares().max() < 1e-9
    both = combined([Factors(d, a), Factors(d, a)])
    torch.testing.assert_close(both.squares(), 4 * Factors(d, a).squares(), rtol=1e-6, atol=0)
    ids = torch.randint(0, 6, (4, 3))
    table = Looked(ids, a, 6)
    mixed = combined([table, Factors(d, a)])
    torch.testing.assert_close(mixed.squares().float(), (table.rows() + Factors(d, a).rows()).square().sum(1))
    formed = combined([Rows(Factors(d, a).rows()), Factors(d, a)])
    torch.testing.assert_close(formed.squares(), both.squares(), rtol=1e-6, atol=0)


# -- wrong rules and mixers are found -------------------------------------------------------------------------------


class Strange(nn.Linear):
    """A layer with a rule of its own."""


@pytest.mark.parametrize("wrong", [False, True])
def test_a_rule_of_ones_own_is_used_if_it_is_right(wrong):
    class StrangeTap(Tap):
        def gradients(self, layer, name, a, d):
            flat = a.reshape(len(a), -1, a.shape[-1]), d.reshape(len(d), -1, d.shape[-1])
            return {"weight": Factors(flat[1] * (2 if wrong else 1), flat[0]), "bias": Rows(flat[1].sum(1))}

    torch.manual_seed(0)
    model = Model(lambda s, x: s.b(torch.tanh(s.a(x))), a=Strange(6, 4), b=nn.Linear(4, CLASSES)).double()
    register_tap(Strange)(StrangeTap)
    try:
        way = choose(Objective(model, LOSS), (rows(6), labels()))
    finally:
        del RULES[Strange]
    assert way.checked
    assert way.formed == (frozenset({"a.weight"}) if wrong else frozenset())


def beside() -> nn.Module:
    """A weight is used by its layer, and functionally."""
    return Model(
        lambda s, x: s.b(torch.tanh(s.a(x)) + functional.linear(x, s.a.weight)),
        a=nn.Linear(6, 6),
        b=nn.Linear(6, CLASSES),
    )


def centred() -> nn.Module:
    """Batch statistics: of one record under vmap, so that records stay apart."""
    return Model(lambda s, x: s.a(x - 0.3 * x.mean(0)), a=nn.Linear(6, CLASSES))


def overwritten() -> nn.Module:
    def run(s, x):
        h = torch.tanh(s.a(x))
        out = s.b(h)
        h += 1.0
        return out + h.mean()

    return Model(run, a=nn.Linear(6, 6), b=nn.Linear(6, CLASSES))


def taken_for_another() -> nn.Module:
    """Two layers share a weight, one of them through a transposed copy."""
    return Model(
        lambda s, x: s.b(functional.linear(torch.tanh(s.a(x)), s.a.weight.T)),
        a=nn.Linear(6, 6),
        b=nn.Linear(6, CLASSES),
    )


@pytest.mark.parametrize("make", [beside, centred, taken_for_another])
def test_planted_mixers_are_routed_to_a_way_that_is_right(make):
    torch.manual_seed(0)
    model, X, y = make().double(), rows(6), labels()
    objective = Objective(model, LOSS)
    way = choose(objective, (X, y))
    assert way.checked
    fast, squares = clipped(objective, way, (X, y))
    C, total = float(squares.sqrt().quantile(0.6)), 0.0
    for x, t in zip(X, y, strict=True):
        model.zero_grad()
        LOSS(model(x[None]), t[None]).backward()
        g = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        total = total + g * min(1.0, C / float(g.norm()))
    assert (fast - total).norm() <= 2e-6 * total.norm()
    if make is not centred:
        wrong, _ = clipped(objective, Way("taps"), (X, y))
        assert (wrong - total).norm() > 0.01 * total.norm()  # what the comparison saves from


def test_a_layer_whose_input_is_overwritten_is_no_way_to_a_wrong_sum():
    """PyTorch's own gradients refuse it; a rule would have used the new values."""
    torch.manual_seed(0)
    objective = Objective(overwritten().double(), LOSS)
    with pytest.raises(InvalidInput, match="inplace operation"):
        PerRecordGradients(objective, 1.0).dry_run(Records((rows(6), labels())))


def test_records_that_meet_outside_of_the_model_are_found():
    last = {}

    def run(s, x):
        out = s.a(x) * (1 + last.get("mean", 0.0))
        last["mean"] = 0.5 * x.detach().mean()
        return out

    objective = Objective(Model(run, a=nn.Linear(6, CLASSES)).double(), LOSS)
    with pytest.raises(InvalidInput, match="records meet"):
        PerRecordGradients(objective, 1.0, vectorised=False).dry_run(Records((rows(6), labels())))


class Padded(nn.Module):
    """As mask code of language models looks at a whole batch: with the same result for each record."""

    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.words, self.out, self.mixes = nn.Embedding(2, 8), nn.Linear(8, CLASSES), mixes

    def forward(self, x):
        mask = x > 0
        h = torch.tanh(self.words(x))
        if mask.all():
            return self.out(h.mean(1) if not self.mixes else h.sum(1))
        return self.out((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp(min=1))


def test_what_vmap_cannot_batch_takes_hooks_if_records_stay_apart():
    torch.manual_seed(0)
    tokens = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    objective = Objective(Padded().double(), LOSS)
    way = choose(objective, (tokens, labels()))
    assert (way.kind, way.checked) == ("hooks", True)
    fast, _ = clipped(objective, way, (tokens, labels()))
    slow, _ = clipped(objective, Way("alone"), (tokens, labels()))
    assert (fast - slow).norm() <= 1e-6 * slow.norm()
    with pytest.raises(InvalidInput, match="lets records meet"):
        choose(Objective(Padded(mixes=True).double(), LOSS), (tokens, labels()))


def test_a_loss_that_calls_the_model_is_tapped_too():
    torch.manual_seed(0)
    model = Model(lambda s, x: s.b(torch.tanh(s.a(x))), a=nn.Linear(6, 4), b=nn.Linear(4, 6)).double()
    objective = Objective(model, RecordLoss(lambda call, x: (call(x) - x).square().mean() + call(2 * x).mean()))
    way = choose(objective, (rows(6),))
    assert (way.kind, way.formed, way.checked) == ("taps", frozenset(), True)
    fast, _ = clipped(objective, way, (rows(6),))
    slow, _ = clipped(objective, Way("taps", frozenset(objective.names)), (rows(6),))
    assert (fast - slow).norm() <= 1e-6 * slow.norm()


def test_nothing_is_left_in_the_model():
    torch.manual_seed(0)
    model = MODELS["encoder"][1]().double()
    before = {name: dict(vars(m)) for name, m in model.named_modules()}
    clipped(Objective(model, LOSS), Way("taps"), (rows(6, 8), labels()))
    assert {name: dict(vars(m)) for name, m in model.named_modules()} == before
    assert torch.backends.mha.get_fastpath_enabled()


# -- what torch.func does not do ------------------------------------------------------------------------------------


class Saving(nn.Module):
    """Activation checkpointing."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.a, self.b, self.reentrant = nn.Linear(6, 6), nn.Linear(6, CLASSES), reentrant

    def forward(self, x):
        return self.b(checkpoint(lambda h: torch.tanh(self.a(h)), x, use_reentrant=self.reentrant))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_is_refused_with_the_remedy(reentrant):
    with pytest.raises(InvalidInput, match=r"activation checkpointing \(chunk_size bounds the same memory\)"):
        PerRecordGradients(Objective(Saving(reentrant), LOSS), 1.0).dry_run(Records((rows(6).float(), labels())))


def test_compiled_models_are_refused_with_the_reason():
    """torch.compile compiled no graph inside of torch.func, silently."""
    model = nn.Sequential(nn.Linear(6, CLASSES))
    whole, part = torch.compile(model, backend="eager"), nn.Sequential(nn.Linear(6, CLASSES))
    part[0].compile(backend="eager")
    for compiled, name in ((whole, "the model"), (part, "0")):
        with pytest.raises(InvalidInput, match=rf"{name} is compiled by torch.compile.*_orig_mod"):
            Objective(compiled, LOSS)
    Objective(whole._orig_mod, LOSS)


class Mixed(nn.Module):
    """Mixed precision: matrices are multiplied in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 16), nn.Linear(16, CLASSES)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.b(torch.tanh(self.a(x))).float()


def test_mixed_precision_takes_the_rules_and_clips_in_float32():
    torch.manual_seed(0)
    objective, data = Objective(Mixed(), LOSS), (rows(6).float(), labels())
    way = choose(objective, data)
    assert (way.kind, way.formed, way.checked) == ("taps", frozenset(), True)
    fast, squares = clipped(objective, way, data)
    slow, _ = clipped(objective, Way("alone"), data)
    assert (fast - slow).norm() < 0.02 * slow.norm()
    C = 0.1 * float(squares.min().sqrt())
    query = PerRecordGradients(objective, C, way=way, chunk_size=COUNT)
    out = torch.zeros(objective.size)
    query.add_up(Records(data), objective.trainable(), torch.tensor([2]).numpy(), out)
    assert 0.999 * C < out.double().norm() <= C
