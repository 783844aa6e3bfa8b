"""Small models of a widely used library, random weights: loss and gradients as in eager mode."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed, and the test compiles its models"
)

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 50,
}


def bert() -> Any:
    config = transformers.BertConfig(
        **SIZES, max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    return transformers.BertForMaskedLM(config), {}


def llama() -> Any:
    config = transformers.LlamaConfig(**SIZES, num_key_value_heads=1, max_position_embeddings=16)
    return transformers.LlamaForCausalLM(config), {"use_cache": False}


@pytest.mark.quick(1)
@pytest.mark.parametrize("make", [bert, llama])
def test_training_step(inner: Any, make: Any) -> None:
    torch.manual_seed(0)
    model, options = make()
    twin = copy.deepcopy(model)
    ids = torch.randint(0, 50, (2, 8))
    ours = inner.compile(twin)(input_ids=ids, labels=ids, **options).loss
    theirs = model(input_ids=ids, labels=ids, **options).loss
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    ours.backward()
    theirs.backward()
    for (name, p), q in zip(twin.named_parameters(), model.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_generation_with_dynamic_length(inner: Any) -> None:
    model, _ = llama()
    model.eval()
    compiled = inner.compile(model, dynamic=True)
    with torch.no_grad():
        for length in (4, 7):
            ids = torch.randint(0, 50, (1, length))
            actual, expected = compiled(input_ids=ids, use_cache=False), model(input_ids=ids, use_cache=False)
            torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-4, atol=1e-5)
    assert inner.kinds() == ["inference"]
