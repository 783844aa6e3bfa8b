"""The quick part of the operator sweep: one sample of the operators that models are made of, in float32.

Results are compared with those of eager mode, kernels with the interpreter.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from polyfuse_bench.opdb.gate import GATE_OPERATORS
from polyfuse_bench.opdb.status import GOOD, SKIP

from models import checks

# Each kernel runs beside the interpreter, too: none may be reported.
KERNELS = checks.BACKEND == "polyfuse"


@cache
def gate() -> dict[str, Any]:
    """The database's items by operator. Importing that takes seconds, which only the process that runs these
    tests spends."""
    from polyfuse_bench.opdb.check import items

    return {item.op: item for item in items(("float32",)) if item.op in GATE_OPERATORS}


def outcome_of(item: Any, **options: Any) -> Any:
    from polyfuse_bench.opdb.check import CheckSettings, check

    return check(item, CheckSettings(checks.BACKEND, samples=1, kernels=KERNELS, **options))


@pytest.mark.quick(10)
@pytest.mark.parametrize("name", GATE_OPERATORS)
def test_operator(name: str) -> None:
    outcome = outcome_of(gate()[name])
    assert outcome.status in GOOD, outcome.detail


def test_gate_names_are_known() -> None:
    """A name that the database lacks would silently test nothing."""
    assert [name for name in GATE_OPERATORS if name not in gate()] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", GATE_OPERATORS)
def test_operator_gradient(name: str) -> None:
    outcome = outcome_of(gate()[name], gradients=True)
    assert outcome.status in GOOD, outcome.detail


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int64", "bfloat16"])
@pytest.mark.parametrize("name", GATE_OPERATORS)
def test_operator_dtype(name: str, dtype: str) -> None:
    from polyfuse_bench.opdb.check import items

    for item in items((dtype,), (name,)):
        outcome = outcome_of(item)
        assert outcome.status in GOOD, outcome.detail
        assert outcome.status != SKIP or outcome.detail, "a skip says why"
