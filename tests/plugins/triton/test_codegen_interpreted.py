"""Generated Triton kernels, run by Triton's interpreter beside the reference interpreter."""

from __future__ import annotations

import random

import pytest

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from triton_interpreted import in_interpreter, kit_faults, tiling_faults, whole_path_faults

GROUPS = ("scalar", "reduction", "memory", "section", "large")
FUNCTIONS = (
    "softmax_train",
    "masked_softmax",
    "layer_norm_train",
    "rms_norm_bf16",
    "cross_entropy_train",
    "argmax",
    "cumsum",
    "bias_gelu_residual_train",
    "rotary",
    "cat",
    "transpose_add",
    "adam_step",
    "max_pool_train",
    "upsample_bilinear",
    "batch_norm_train",
    "embedding_train",
    "scatter_add",
    "index_put_accumulate",
)


@pytest.mark.parametrize("group", [*GROUPS[:-1], pytest.param(GROUPS[-1], marks=pytest.mark.slow)])
def test_the_kit(group):
    """Every fourth kernel of it."""
    assert in_interpreter(kit_faults, group, True, False, 4) == []


@pytest.mark.slow
@pytest.mark.parametrize("group", GROUPS)
def test_the_whole_kit(group):
    assert in_interpreter(kit_faults, group, False) == []


@pytest.mark.quick(1)
@pytest.mark.parametrize("group", ["memory", "reduction", "section"])
def test_any_tiling_gives_the_same(group):
    seed = random.randrange(1 << 30)
    assert in_interpreter(tiling_faults, group, seed) == [], f"seed {seed}"


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_whole_path(every):
    assert in_interpreter(whole_path_faults, FUNCTIONS[::every]) == []
