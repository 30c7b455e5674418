"""Other people's models: BERT, GPT-2 and ViT of Hugging Face, from configurations, as they come."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tacit.torch.comparison import choose
from tacit.torch.gradients import PerRecordGradients
from tacit.torch.objective import Objective
from tacit.torch.records import Records
from tacit.torch.ways import Way

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # of another library
COUNT, WORDS, LENGTH = 4, 50, 8
CE = nn.CrossEntropyLoss()
G = torch.Generator().manual_seed(0)
IDS, PICTURES = torch.randint(2, WORDS, (COUNT, LENGTH), generator=G), torch.randn(COUNT, 3, 16, 16, generator=G)
MASK = (torch.arange(LENGTH)[None] < torch.tensor([8, 6, 3, 8])[:, None]).long()
LABELS = torch.arange(COUNT) % 3
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32, "num_labels": 3}
QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=WORDS, max_position_embeddings=16, **SIZES, **QUIET)
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 1}
    config = transformers.GPT2Config(vocab_size=WORDS, n_embd=16, n_layer=2, n_head=2, n_positions=16, **none)
    return transformers.GPT2LMHeadModel(config)


def vit() -> nn.Module:
    return transformers.ViTForImageClassification(transformers.ViTConfig(image_size=16, patch_size=4, **SIZES, **QUIET))


def of_logits(output, target):
    return CE(output.logits, target)


def of_next_words(output, target):
    return CE(output.logits[:, :-1].flatten(0, 1), target[:, 1:].flatten())


CASES = {
    "bert": (bert, of_logits, (IDS, LABELS), "taps"),
    "bert with a mask": (bert, of_logits, (IDS, MASK, LABELS), "hooks"),
    "gpt-2": (gpt2, of_next_words, (IDS, IDS), "taps"),
    "vit": (vit, of_logits, (PICTURES, LABELS), "taps"),
}


def clipped(objective: Objective, way: Way, data: tuple[torch.Tensor, ...], C: float) -> torch.Tensor:
    query = PerRecordGradients(objective, C, way=way, chunk_size=COUNT)
    out = torch.zeros(objective.size, dtype=query.sum_type)
    query.add_up(Records(data), objective.trainable(), torch.arange(COUNT).numpy(), out)
    return out


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_clipped_sums_equal_those_of_single_records(name, dtype):
    """GPT-2 ties its head to its table; BERT with a mask asks mask.all(), which vmap cannot batch."""
    make, loss, data, kind = CASES[name]
    torch.manual_seed(0)
    objective = Objective(make().to(dtype), loss)
    data = tuple(part.to(dtype) if part.is_floating_point() else part for part in data)
    way = choose(objective, data)
    assert (way.kind, way.checked) == (kind, True)
    assert len(way.formed) <= 2  # of a vision model, its first token and its places
    for C in (1e-2, 1.0):
        expected = clipped(objective, Way("alone"), data, C)
        found = clipped(objective, way, data, C)
        assert (found - expected).norm() <= (1e-6 if dtype == torch.float64 else 2e-5) * expected.norm()
