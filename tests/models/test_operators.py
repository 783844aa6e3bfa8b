"""The quick part of the operator sweep: one sample of the operators that models are made of, in float32.

Results are compared with those of eager mode, kernels with the interpreter.
"""

from __future__ import annotations

import pytest
from polyfuse_bench.opdb.check import CheckSettings, Item, check, items
from polyfuse_bench.opdb.gate import GATE_OPERATORS
from polyfuse_bench.opdb.status import GOOD, SKIP

from models import checks

# Each kernel runs beside the interpreter, too: none may be reported.
KERNELS = checks.BACKEND == "polyfuse"
SETTINGS = CheckSettings(checks.BACKEND, samples=1, kernels=KERNELS)
GATE = {item.op: item for item in items(("float32",)) if item.op in GATE_OPERATORS}


@pytest.mark.quick(100)
@pytest.mark.parametrize("item", GATE.values(), ids=GATE)
def test_operator(item: Item) -> None:
    outcome = check(item, SETTINGS)
    assert outcome.status in GOOD, outcome.detail


def test_gate_names_are_known() -> None:
    """A name that the database lacks would silently test nothing."""
    assert [name for name in GATE_OPERATORS if name not in GATE] == []


@pytest.mark.slow
@pytest.mark.parametrize("item", GATE.values(), ids=GATE)
def test_operator_gradient(item: Item) -> None:
    outcome = check(item, CheckSettings(checks.BACKEND, samples=1, gradients=True, kernels=KERNELS))
    assert outcome.status in GOOD, outcome.detail


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int64", "bfloat16"])
@pytest.mark.parametrize("name", GATE)
def test_operator_dtype(name: str, dtype: str) -> None:
    for item in items((dtype,), (name,)):
        outcome = check(item, SETTINGS)
        assert outcome.status in GOOD, outcome.detail
        assert outcome.status != SKIP or outcome.detail, "a skip says why"
