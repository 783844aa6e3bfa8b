"""Families whose recurrence Dynamo unrolls, step by step: too large a graph for what runs every family."""

from __future__ import annotations

import transformers as hf
from torch import nn

from polyfuse_bench.models.family import Family, Size
from polyfuse_bench.models.text import token_ids, vocabulary

__all__ = ["MAMBA"]


def mamba(size: Size) -> nn.Module:
    """The shape of Mamba-130m."""
    return hf.MambaForCausalLM(
        hf.MambaConfig(
            vocab_size=vocabulary(size),
            hidden_size=size.pick(768, 32),
            num_hidden_layers=size.pick(4, 2),
            use_cache=False,
        )
    )


MAMBA = Family("mamba", "decoder", mamba, token_ids, seq=16, tiny_seq=4)
