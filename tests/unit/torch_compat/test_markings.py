"""Marks on dimensions of parameters, which Dynamo does not read, cost no guards; those of inputs do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo import config
from torch._dynamo.guards import GuardManager

looks_for_marks = pytest.mark.skipif(
    not hasattr(GuardManager, "add_dimension_marking_guard"), reason="torch before 2.13 has no such guard"
)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))
        self.register_buffer("shift", torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ self.weight.t() + self.shift)


def _compiled() -> tuple[nn.Module, nn.Module]:
    torch._dynamo.reset()
    model = Scaled().eval()
    return model, torch.compile(model, backend="polyfuse")


def _entries(model: nn.Module) -> list[str]:
    """The guards of each graph that the model has been compiled to."""
    entries = _debug_get_cache_entry_list(type(model).forward.__code__)
    return [str(entry.guard_manager) for entry in entries]


def _looks_at(guards: str, name: str) -> bool:
    checks = [line.partition("  #")[0] for line in guards.splitlines()]  # without the line of the program
    return any("_indices" in check and name in check for check in checks)


@looks_for_marks
def test_guards_look_for_marks_of_inputs_alone() -> None:
    model, compiled = _compiled()
    x = torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    (guards,) = _entries(model)
    assert _looks_at(guards, "L['x']")
    assert not _looks_at(guards, "weight") and not _looks_at(guards, "shift")
    assert "TENSOR_MATCH" in guards


def test_a_mark_on_a_parameter_changes_nothing() -> None:
    model, compiled = _compiled()
    x = torch.randn(2, 3)
    with torch.no_grad():
        compiled(x)
        torch._dynamo.mark_dynamic(model.weight, 0)
        torch._dynamo.maybe_mark_dynamic(model.shift, 0)
        torch.testing.assert_close(compiled(x), model(x))
        model.weight = nn.Parameter(torch.randn(5, 3))
        model.shift = torch.randn(5)
        torch.testing.assert_close(compiled(x), model(x))


@looks_for_marks
def test_a_mark_on_an_input_is_seen() -> None:
    model, compiled = _compiled()
    with torch.no_grad():
        compiled(torch.randn(4, 3))
        marked = torch.randn(4, 3)
        torch._dynamo.mark_dynamic(marked, 0)
        torch.testing.assert_close(compiled(marked), model(marked))
        assert len(_entries(model)) == 2
        for rows in (5, 9):
            x = torch.randn(rows, 3)
            torch.testing.assert_close(compiled(x), model(x))
    assert len(_entries(model)) == 2


@looks_for_marks
def test_sizes_that_may_vary_are_looked_at() -> None:
    with config.patch(force_parameter_static_shapes=False, force_nn_module_property_static_shapes=False):
        model, compiled = _compiled()
        x = torch.randn(2, 3)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))
    (guards,) = _entries(model)
    assert _looks_at(guards, "weight")


@looks_for_marks
def test_marks_that_are_there_are_compared() -> None:
    model, compiled = _compiled()
    torch._dynamo.mark_static(model.weight, 0)
    x = torch.randn(2, 3)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        (guards,) = _entries(model)
        assert _looks_at(guards, "weight")
        torch.testing.assert_close(compiled(x), model(x))
    assert len(_entries(model)) == 1
