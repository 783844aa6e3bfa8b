"""The benchmark's model families at test size on a real device, in single and half precision."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from polyfuse_bench.models import MAIN_FAMILIES, Prepared, Size, family, flatten_outputs, prepare

from polyfuse.compiler.reports.report import last_reports, reset_reports

pytestmark = pytest.mark.gpu


def _compiled(model: Any, fullgraph: bool = True) -> Any:
    torch._dynamo.reset()
    reset_reports()
    return torch.compile(model, backend="polyfuse", dynamic=False, fullgraph=fullgraph)


def _traced_as_a_whole(name: str, dtype: torch.dtype) -> bool:
    """Whether no backward looks at data while it is traced, as that of grouped products in single precision
    does in some releases of transformers.
    """
    traced = hasattr(torch.ops.transformers, "grouped_mm_fallback_backward")
    return name != "mixtral" or dtype is torch.bfloat16 or traced


def _prepared(name: str, dtype: torch.dtype, train: bool) -> Prepared:
    return prepare(family(name), Size.TINY, batch=2, train=train, dtype=dtype, device="cuda")


def _no_worse(actual: Any, expected: Any, exact: Any, what: str, slack: float) -> None:
    """No farther from double precision than a few times eager mode's own distance."""
    for position, (a, e, t) in enumerate(zip(actual, expected, exact, strict=True)):
        a, e, t = (v if v is None else v.cpu() for v in (a, e, t))
        if a is None or not a.is_floating_point() or not a.numel():
            continue
        scale = t.abs().max().item() + 1e-30
        ours, eagers = ((v.double() - t).abs().max().item() / scale for v in (a, e))
        assert ours <= 4 * eagers + slack, f"{what} {position}: {ours:.2e} where eager has {eagers:.2e}"


def _exactly(prepared: Prepared) -> tuple[Any, dict[str, torch.Tensor]]:
    """The model in double precision and its inputs, on the CPU: some operators of devices lack that type."""
    wide = {n: v.double() if v.is_floating_point() else v for n, v in prepared.inputs.items()}
    model = copy.deepcopy(prepared.model).cpu().double()
    if getattr(getattr(model, "config", None), "_experts_implementation", None):
        model.set_experts_implementation("eager")  # grouped products are not there in that type
    return model, {n: v.cpu() for n, v in wide.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAIN_FAMILIES)
def test_forward(name: str, dtype: torch.dtype) -> None:
    prepared = _prepared(name, dtype, train=False)
    exact, wide = _exactly(prepared)
    with torch.no_grad():
        expected = flatten_outputs(prepared.model(**prepared.inputs))
        actual = flatten_outputs(_compiled(prepared.model)(**prepared.inputs))
        truth = flatten_outputs(exact(**wide))
    slack = 1e-4 if dtype is torch.float32 else 2e-2
    _no_worse(actual, expected, truth, "output", slack)
    assert not [r.eager for r in last_reports() if r.eager]
    assert any(launch.backend == "triton" for r in last_reports() for launch in r.launches)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MAIN_FAMILIES)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    prepared = _prepared(name, dtype, train=True)
    exact, wide = _exactly(prepared)
    reference = copy.deepcopy(prepared.model)
    for model, run, args in (
        (exact, exact, wide),
        (reference, reference, prepared.inputs),
        (prepared.model, _compiled(prepared.model, _traced_as_a_whole(name, dtype)), prepared.inputs),
    ):
        prepared.loss(flatten_outputs(run(**args))).backward()
        assert any(p.grad is not None for p in model.parameters())
    grads = [[p.grad for p in m.parameters()] for m in (prepared.model, reference, exact)]
    largest = max(g.abs().max().item() for g in grads[2] if g is not None)
    large = [k for k, g in enumerate(grads[2]) if g is not None and g.abs().max().item() > 1e-3 * largest]
    slack = 1e-3 if dtype is torch.float32 else 5e-2
    _no_worse(*([g[k] for k in large] for g in grads), "gradient", slack)
    assert not [r.eager for r in last_reports() if r.eager]
