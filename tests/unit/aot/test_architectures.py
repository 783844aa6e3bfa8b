"""Architectures of `transformers` whose packages, or libraries without Python, once could not be made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from native_runner import call
from packaged_models import in_a_process
from polyfuse import aot
from polyfuse.base.errors import PackageError

hf = pytest.importorskip("transformers", reason="the extra `demo`")

Made = tuple[torch.nn.Module, dict[str, Any]]


def levit() -> Made:
    """Its last stage attends from one pixel to one: rows times columns."""
    config = hf.LevitConfig(
        image_size=32,
        hidden_sizes=[16, 24, 32],
        num_attention_heads=[2, 3, 4],
        depths=[1, 1, 1],
        key_dim=[8, 8, 8],
        mlp_ratio=[2, 2, 2],
        attention_ratio=[2, 2, 2],
    )
    return hf.LevitModel(config), {"pixel_values": torch.randn(2, 3, 32, 32)}


def sam() -> Made:
    """Two matmuls of relative positions are added along another axis each."""
    vision = hf.SamVisionConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=32,
        patch_size=4,
        mlp_dim=32,
        window_size=4,
        global_attn_indexes=[1],
        output_channels=16,
        num_pos_feats=8,
    )
    prompt = hf.SamPromptEncoderConfig(hidden_size=16, image_size=32, patch_size=4, mask_input_channels=4)
    mask = hf.SamMaskDecoderConfig(
        hidden_size=16, mlp_dim=32, num_hidden_layers=2, num_attention_heads=2, iou_head_hidden_dim=16
    )
    parts = (config.to_dict() for config in (vision, prompt, mask))
    names = ("vision_config", "prompt_encoder_config", "mask_decoder_config")
    model = hf.SamModel(hf.SamConfig(**dict(zip(names, parts, strict=True))))
    return model, {"pixel_values": torch.randn(1, 3, 32, 32), "input_points": torch.rand(1, 1, 2, 2) * 32}


def llama4() -> Made:
    """Its rotary embedding multiplies complex numbers."""
    config = hf.Llama4TextConfig(
        hidden_size=32,
        intermediate_size=32,
        intermediate_size_mlp=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=64,
        num_local_experts=4,
        num_experts_per_tok=1,
        max_position_embeddings=64,
        attention_chunk_size=16,
        pad_token_id=0,
    )
    return hf.Llama4ForCausalLM(config), {"input_ids": torch.randint(0, 64, (2, 12)), "use_cache": False}


def jetmoe() -> Made:
    """How many tokens an expert gets, data decide."""
    config = hf.JetMoeConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        kv_channels=8,
        vocab_size=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
    )
    return hf.JetMoeForCausalLM(config), {"input_ids": torch.randint(0, 64, (2, 12)), "use_cache": False}


def prepared(make: Callable[[], Made]) -> Made:
    """A network whose weights are all random, norms' and biases' too."""
    model, inputs = make()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval(), inputs


_RUN = """
import json, sys, torch
from polyfuse import aot
given, wanted = torch.load(sys.argv[2])
leaves = torch.utils._pytree.tree_leaves
found = [leaf for leaf in leaves(aot.load(sys.argv[1])(**given)) if isinstance(leaf, torch.Tensor)]
off = [float((a - b).abs().max() / b.abs().max().clamp_min(1e-6)) for a, b in zip(found, wanted, strict=True)]
print(json.dumps([max(off), "polyfuse.compiler.stages" in sys.modules]))
"""


class Flat(torch.nn.Module):
    """A network whose results are tensors in a tuple."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> tuple[torch.Tensor, ...]:
        leaves = torch.utils._pytree.tree_leaves(dict(self.model(**inputs)))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))


@pytest.mark.slow
@pytest.mark.parametrize("make", [levit, sam, llama4, jetmoe])
def test_its_package_agrees_with_eager_mode(make: Callable[[], Made], tmp_path: Path) -> None:
    model, inputs = prepared(make)
    network = Flat(model)
    path = aot.package(network, (), inputs, path=tmp_path / "model.pf")
    # other numbers than those of the trace; they choose other experts
    other = {
        name: torch.randint_like(value, 0, 64)
        if name == "input_ids"
        else torch.rand_like(value) * 3
        if isinstance(value, torch.Tensor)
        else value
        for name, value in inputs.items()
    }
    with torch.no_grad():
        torch.save((other, list(network(**other))), tmp_path / "given.pt")
    off, compiled = in_a_process(_RUN, str(path), str(tmp_path / "given.pt"))
    assert off < 1e-4 and not compiled


@pytest.mark.slow
@pytest.mark.parametrize("make", [levit, sam, llama4])
def test_it_also_runs_without_python(make: Callable[[], Made], tmp_path: Path) -> None:
    model, inputs = prepared(make)
    network = Flat(model)
    path = aot.package(network, (), inputs, path=tmp_path / "model.pf", native=True)
    given = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
    (found,) = call(path, [given])
    assert not found.error
    with torch.no_grad():
        wanted = network(**inputs)
    for result, expected in zip(found.results, wanted, strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_sizes_that_data_decide_need_python(tmp_path: Path) -> None:
    model, inputs = prepared(jetmoe)
    with pytest.raises(PackageError, match=r"needs Python: the operator .*_local_scalar_dense"):
        aot.package(Flat(model), (), inputs, path=tmp_path / "model.pf", native=True)
