"""The option `halide.checks`: kernels that look at what they touch, and name themselves where it is wrong."""

from __future__ import annotations

import pytest
import torch

from polyfuse.base.errors import KernelLaunchError
from polyfuse.base.settings import Settings
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse
from requirements import HALIDE

pytest.importorskip("halide", reason=HALIDE)

from polyfuse_halide.backend import HalideBackend

GATHER = """kernel fetch on cpu {{
  {symbols}numerics fast
  axes i0{{{count}}} ~ {hint}, i1{{32}} ~ 32
  in in0: f32[320]
  in in1: i64[{count}]
  in in2: bool[{count}]
  out out0: f32[32*{count}]
  {size}once {{
    v0 = load i64 in1[i0]
    v1 = load bool in2[i0]
    v2 = const f32 -1.0
    v3 = load f32 in0[32*@0{{10}} + i1] @(v0) if v1 else v2
    store f32 set out0[32*i0 + i1] = v3
  }}
}}
"""
SCATTER = """kernel put on cpu {
  numerics fast
  axes i0{50} ~ 50
  in in0: f32[50]
  in in1: i64[50]
  inout io0: f32[20]
  once {
    v0 = load i64 in1[i0]
    v1 = load f32 in0[i0]
    store f32 add io0[@0{20}] @(v0) = v1
  }
}
"""


def gather(dynamic: bool, count: int) -> Kernel:
    parts = {"symbols": "symbols s0{0..}\n  ", "size": "size s0: i64\n  ", "count": "s0"}
    return parse(
        GATHER.format(**parts if dynamic else {"symbols": "", "size": "", "count": count}, hint=count)
    )


def built(kernel: Kernel, folder, **options: str):
    backend = HalideBackend(Settings.resolve(options={"halide.checks": "1", **options}))
    source = backend.emit(kernel)
    backend.build([source], folder)
    return backend.load(folder)[source.key]


@pytest.mark.quick(1)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("count", [1, 40, 3000])
def test_a_read_at_a_wrong_index_names_the_kernel(dynamic, count, tmp_path):
    launch = built(gather(dynamic, count), tmp_path)
    x, indices = torch.randn(10, 32), torch.randint(0, 10, (count,))
    mask, sizes = torch.rand(count) < 0.7, (count,) * dynamic
    mask[-1] = True
    wanted = torch.where(mask[:, None], x[indices], -1.0)
    for wrong in (10, -1, 1 << 40, -(1 << 62)):
        bad = indices.clone()
        bad[-1] = wrong
        with pytest.raises(
            KernelLaunchError, match=rf"kernel fetch stopped: {wrong} is no position in in0, which has 0 to 9"
        ):
            launch(x, bad, mask, torch.zeros(count, 32), *sizes)
        found = torch.zeros(count, 32)
        launch(x, indices, mask, found, *sizes)
        assert torch.equal(found, wanted)


def test_indices_that_a_mask_leaves_out_may_be_anything(tmp_path):
    launch = built(gather(False, 40), tmp_path)
    x, indices, mask = torch.randn(10, 32), torch.randint(0, 10, (40,)), torch.arange(40) % 3 > 0
    indices[::3] = torch.tensor([-100, 10, 1 << 50] * 4 + [-1, 99])
    found = torch.zeros(40, 32)
    launch(x, indices, mask, found)
    assert torch.equal(found, torch.where(mask[:, None], x[indices.clamp(0, 9)], -1.0))


def test_a_store_at_a_wrong_index_names_the_kernel(tmp_path):
    launch = built(parse(SCATTER), tmp_path)
    x, indices, total = torch.randn(50), torch.randint(0, 20, (50,)), torch.zeros(20)
    launch(x, indices, total)
    torch.testing.assert_close(total, torch.zeros(20).index_add(0, indices, x))
    indices[17] = 20
    with pytest.raises(KernelLaunchError, match="kernel put stopped: 20 is no position in io0"):
        launch(x, indices, total)


def test_halides_own_checks_name_the_kernel(tmp_path):
    """A program that reads beside its input, as one that is generated wrongly would."""
    backend = HalideBackend(Settings.resolve(options={"halide.checks": "1"}))
    kernel = gather(False, 40)
    source = backend.emit(kernel)
    assert 'p.input("in1", "i64", 40)' in source.text
    wrong = type(source)(
        source.name, source.text.replace("in1(i0)", "in1(i0 + 1)"), "halide", meta=source.meta
    )
    backend.build([wrong], tmp_path)
    x, indices, mask = (
        torch.randn(10, 32),
        torch.zeros(41, dtype=torch.int64),
        torch.ones(40, dtype=torch.bool),
    )
    with pytest.raises(
        KernelLaunchError, match="kernel fetch stopped: Input buffer in1_in is touched from 1 to 40"
    ):
        backend.load(tmp_path)[wrong.key](x, indices, mask, torch.zeros(40, 32))


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int64]


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [*DTYPES, torch.bool])
def test_compiled_functions_pass_their_checks(dtype):
    def function(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x[i]
        return y, torch.cat([y, x]).t().contiguous(), y.float().cumsum(1), y.float().softmax(0), x.sum(1)

    x = torch.randint(0, 2, (9, 33)).to(dtype)
    i = torch.randint(-9, 9, (70,))
    torch._dynamo.reset()
    options = {"backends": ["halide", "interpreter"], "halide.checks": "1"}
    found = torch.compile(function, backend="polyfuse", options=options, dynamic=True)(x, i)
    for got, wanted in zip(found, function(x, i), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-2)


def test_without_the_option_nothing_is_checked():
    plain, checked = (HalideBackend(Settings.resolve(options={"halide.checks": on})) for on in ("0", "1"))
    kernel = gather(False, 40)
    assert "checked_at" not in plain.emit(kernel).text and "checked_at" in checked.emit(kernel).text
    assert plain.describe() != checked.describe()
