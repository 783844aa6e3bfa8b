"""Flexible attention on a real device: values and gradients beside eager mode in f32."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from triton_flex import CASES, Case, move_tables, operands, results_of, runner

pytestmark = pytest.mark.gpu

LARGE = replace(CASES["bf16"], queries=1024, keys=1024, heads=4, depth=128)
SHORT = replace(LARGE, depth=64)
MORE = {
    **CASES,
    "large": LARGE,
    "f16": replace(SHORT, dtype=torch.float16),
    "bf16 without mask": replace(SHORT, mask=None),
    "bf16 ragged": replace(SHORT, queries=1000, keys=777, values=96, mask=CASES["documents"].mask),
    "bf16 ragged without mask": replace(LARGE, batch=2, queries=333, keys=129, mask=None),
    "bf16 soft cap": replace(LARGE, score=CASES["soft cap"].score),
    "bf16 relative": replace(SHORT, score=CASES["relative"].score, mask=None, sums=True),
    "bf16 relative ragged": replace(
        SHORT, queries=1000, keys=777, score=lambda s, b, h, q, k: s - 0.2 * (k - q) * (h + 1) + q % 7
    ),
    "bf16 relative long": replace(LARGE, score=CASES["relative"].score),
    "bf16 groups": replace(LARGE, key_heads=2, transposed=True),
    "bf16 long": replace(SHORT, depth=192, values=128),
    "bf16 longest": replace(SHORT, depth=256, backward=False),
    "bf16 masks by head": replace(
        CASES["masks by head"], queries=512, keys=512, dtype=torch.bfloat16, depth=64, block=128
    ),
    "bf16 rows of nothing": replace(LARGE, mask=CASES["rows of nothing"].mask),
    "bf16 dynamic": replace(SHORT, queries=500, keys=500, dynamic=True),
    "bf16 shared keys": replace(SHORT, batch=2, key_batch=1),
}
HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


def check(case: Case, mode: str = "default") -> None:
    move_tables("cuda")
    given, function = operands(case, "cuda"), runner(case, "cuda")
    compiled = torch.compile(function, backend="polyfuse", dynamic=case.dynamic, mode=mode)
    found = results_of(compiled, given, case)
    wanted = results_of(function, [t.float() for t in given], case)
    near = 3e-2 if case.dtype is not torch.float32 else 1e-4
    for got, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            got.float(), right.float(), rtol=near, atol=near * float(right.abs().max())
        )


@pytest.mark.parametrize("name", MORE)
def test_beside_eager_mode(name, recwarn):
    check(MORE[name])
    assert not [w for w in recwarn if "polyfuse" in str(w.message)]


def test_recorded():
    check(LARGE, "reduce-overhead")


@pytest.mark.skipif(not HOPPER, reason="this machine has no Hopper GPU, for which the kernel is")
def test_operands_at_odd_addresses_are_moved():
    from polyfuse_cuda.template import ALIGNMENT

    move_tables("cuda")
    case = replace(SHORT, backward=False)
    given, function = operands(case, "cuda"), runner(case, "cuda")
    odd = []
    for tensor in given:
        room = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device="cuda")
        odd.append(room[1:].view(tensor.shape).copy_(tensor))
    assert all(t.data_ptr() % ALIGNMENT for t in odd)
    compiled = torch.compile(function, backend="polyfuse")
    wanted = compiled(*given)
    torch.testing.assert_close(compiled(*odd), wanted, rtol=0, atol=0)
    from polyfuse_cutlass.attention import lowering as loading

    assert loading._LOADED
