"""The backward of flexible attention as the CUTLASS backend puts it into a graph, with the kernel itself
replaced by torch: its arguments, what it adds to, and how that becomes a gradient. Runs in the process of
`in_interpreter`.
"""

from __future__ import annotations

import unittest.mock
import warnings
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.attention import flex_attention as flex

from polyfuse.flex.call import Written
from polyfuse.plugin import Expected
from polyfuse_cutlass.attention import lowering
from polyfuse_cutlass.attention.backward import Totals
from polyfuse_cutlass.attention.tiles import LANES, BackwardTiles
from triton_flex import CASES, operands, results_of, runner

__all__ = ["EMULATED", "emulated_faults"]

_SHORT = CASES["bf16"]
EMULATED = {
    "short": replace(_SHORT, queries=150, keys=70, heads=1, mask=None),
    "long": replace(_SHORT, queries=128, keys=128, depth=96, key_heads=1, transposed=True),
    "sum": replace(_SHORT, queries=128, keys=64, heads=1, mask=None),
    "dynamic": replace(_SHORT, queries=150, keys=150, batch=2, dynamic=True, mask=None),
}
_BACKWARD = "higher_order.flex_attention_backward"


class _Kernel:
    """Computes in f32 what the kernel does: with the arguments that it has, in their order."""

    plugin = "cuda_cutlass"

    def __init__(
        self, written: Written, masked: bool, expected: Callable[..., Expected], defect: str
    ) -> None:
        self.__name__ = written.source.name
        self.key = written.source.key
        self.expected = expected
        self._defect = defect
        self._masked = masked
        self.calls = 0

    def __call__(self, *arguments: Any) -> None:
        self.calls += 1
        q, k, v, g, sums, common, totals, to_key, to_value = arguments[:9]
        scale = q.shape[-1] ** -0.5
        shared = q.shape[1] // k.shape[1]
        keys, values = (t.float().repeat_interleave(shared, 1) for t in (k, v))
        p = torch.exp2(q.float() @ keys.mT * (scale * 1.4426950408889634) - sums[..., None])
        if self._masked:
            p = p.tril()
        ds = p * (g.float() @ values.mT - common[..., None])
        for result, found in ((to_key, ds.mT @ q.float() * scale), (to_value, p.mT @ g.float())):
            result.copy_(found.unflatten(1, (-1, shared)).sum(2))
        depth = -(-q.shape[-1] // LANES) * LANES
        sizes = SimpleNamespace(batch=q.shape[0], heads=q.shape[1], queries=q.shape[2])
        layout = Totals(sizes, BackwardTiles(128 if depth == LANES else 64, depth))  # type: ignore[arg-type]
        assert tuple(totals.shape) == layout.size
        offsets = [[layout.offset(m, d) for d in range(q.shape[-1])] for m in range(q.shape[2])]
        totals[:, :, torch.tensor(offsets)] += ds @ keys * (0.5 if self._defect == "sums" else 1)
        if self._defect == "keys":
            to_key[0, 0, -1] *= 0.9

    def by_library(self, *arguments: Any) -> None:
        for at, (values, _) in self.expected(*arguments).results.items():
            arguments[at].copy_(values)


def emulated_faults(name: str, check: str = "off", defect: str = "") -> list[str]:
    """What differs from eager mode; under the option `check`, what that says of this kernel."""
    from polyfuse.checking import records, tally
    from polyfuse_triton.flex import lowering as triton_lowering
    from triton_interpreted import offer

    offer()
    torch._dynamo.reset()
    case, made = EMULATED[name], []

    def kernel(written: Written, backend: object, copied: int, expected: Callable[..., Expected]) -> _Kernel:
        assert copied == 4
        made.append(_Kernel(written, case.mask is not None, expected, defect))
        return made[-1]

    lowerings = {
        **triton_lowering.LOWERINGS,
        _BACKWARD: lowering.LOWERINGS[_BACKWARD],
    }
    given, function = operands(case), runner(case)
    if name == "sum":
        # the gradient of the output is one number, repeated
        attend, function = function, lambda q, k, v: attend(q, k, v).sum()
    tally.begin(forget=True)
    records._OPEN.clear()
    options = {"backends": "interpreted", "graph_cache": False, "check": check}
    compiled = torch.compile(function, backend="polyfuse", options=options, dynamic=case.dynamic)
    with (
        unittest.mock.patch.object(flex, "_validate_device", lambda *_: None),
        unittest.mock.patch.object(triton_lowering, "LOWERINGS", lowerings),
        unittest.mock.patch.object(lowering, "_backend", lambda *_: None),
        unittest.mock.patch.object(lowering, "_kernel", kernel),
        warnings.catch_warnings(record=True) as seen,
    ):
        warnings.simplefilter("always")
        results_of(compiled, given, case)
        # a second call adds to nothing of the first
        found = results_of(compiled, given, case)
        wanted = results_of(torch.compile(function, backend="eager"), given, case)
    faults = [str(w.message) for w in seen if "polyfuse" in str(w.message) and not defect]
    if check != "off":
        said = [f"{one.backend} {one.kernel}" for one in tally.result().findings]
        if said != (["cuda_cutlass flex_attention_backward"] if defect else []):
            faults.append(f"found: {said}")
        if made[0].key not in tally.result().kernels:
            faults.append("the kernel was not compared")
    elif [k.calls for k in made] != [2]:
        faults.append(f"called: {[k.calls for k in made]}")
    for position, (got, right) in enumerate(zip(found, wanted, strict=True)):
        limit = 2e-2 * max(1.0, right.abs().max().item())
        if not torch.allclose(got.double(), right.double(), 2e-2, limit):
            faults.append(f"result {position} is off by {(got.double() - right.double()).abs().max()}")
    return faults
