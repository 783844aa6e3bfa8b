"""Conversion to floating-point types of eight bits, where values are too large or no numbers."""

from __future__ import annotations

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from triton_interpreted import in_interpreter

EDGES = [0.0, -0.0, 1.0, -3.3, 448.0, -448.0, 463.0, 465.0, -465.0, 500.0, -500.0, 7e4, -7e4, 1e-3]


def older_torch(values: list[float]) -> tuple[str, torch.Tensor]:
    """The text and the bits of values converted as torch did before it clamped to the largest number."""
    from polyfuse_triton.loops import ops
    from triton_interpreted import run_text

    ops._saturates.cache_clear()
    known, ops._saturates = ops._saturates, lambda: False
    try:
        count = len(values)
        text = f"""kernel k on cuda {{
numerics fast
axes p0{{{count}}} ~ {count}
in in0: f32[{count}]
out out0: f8e4m3[{count}]
once {{
  v1 = load f32 in0[p0]
  v2 = cast f8e4m3 (v1)
  store f8e4m3 set out0[p0] = v2
}}
}}"""
        out = torch.zeros(count, dtype=torch.float8_e4m3fn)
        found, _, written = run_text(text, None, [torch.tensor(values), out])
        return written, found[1].view(torch.uint8)
    finally:
        ops._saturates = known


def test_what_is_too_large_becomes_nan_of_its_sign():
    text, found = in_interpreter(older_torch, EDGES)
    assert "to_f8e4m3_nan" in text
    large = torch.tensor([abs(v) > 464 for v in EDGES])
    wanted = torch.tensor(EDGES).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    assert torch.equal(found[~large], wanted[~large])
    assert torch.equal(
        found[large], torch.tensor([255 if v < 0 else 127 for v in EDGES if abs(v) > 464], dtype=torch.uint8)
    )
