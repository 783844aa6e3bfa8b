"""What Dynamo made of frames in an earlier process: used where it fits, and nowhere else."""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.testing._internal.two_tensor import TwoTensor

from graph_caching import cache_of_its_own  # noqa: F401
from new_process import as_in_a_new_process
from polyfuse.base import code
from polyfuse.cache.archive import CARRIED
from polyfuse.cache.graphs import graph_counts
from polyfuse.cache.key_fields import KeyNotes
from polyfuse.compiler.captures import files, lookup, pending


@pytest.fixture(autouse=True)
def _on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_CAPTURE_CACHE", "1")


def records(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "captures").glob("*/*"))


def found(function: Callable[..., Any], *args: Any, **options: Any) -> int:
    """How many frames a further process finds; what it computes is compared with eager mode."""
    as_in_a_new_process()
    counters.clear()
    result = torch.compile(function, backend="polyfuse", **options)(*args)
    torch.testing.assert_close(result, function(*args))
    captured = graph_counts().captured
    assert counters["stats"]["unique_graphs"] == (0 if captured else 1)
    return captured


def scaled(x: torch.Tensor, factor: int = 3) -> torch.Tensor:
    return helped(x * factor).softmax(-1)


def helped(x: torch.Tensor) -> torch.Tensor:
    return x + OFFSET


OFFSET = 2


class Net(torch.nn.Module):
    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 5)
        self.activation, self.sizes = activation, {"rows": 3, "columns": 5}

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.last(self.activation(self.first(x)))
        return {name: y * size for name, size in self.sizes.items()}


@pytest.mark.quick(1)
def test_a_function_is_traced_by_one_process(tmp_path):
    x = torch.randn(4, 6)
    assert [found(scaled, x), found(scaled, x)] == [0, 1]
    assert len(records(tmp_path)) == 1
    assert gc.isenabled()


def test_a_network_with_other_weights():
    for number in range(2):
        with torch.no_grad():
            assert found(Net(), torch.randn(4, 6)) == number


class Cache:
    """What a decoder returns beside its result: tensors, and what they are."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values, self.dtype, self.device = values, values.dtype, values.device
        self.layout, self.order = values.layout, (torch.channels_last, torch.preserve_format)


def with_a_cache(x: torch.Tensor) -> tuple[torch.Tensor, Cache]:
    return x * 2, Cache(x + 1)


def test_results_that_name_types_and_devices(tmp_path):
    for count in (0, 1):
        as_in_a_new_process()
        y, cache = torch.compile(with_a_cache, backend="polyfuse", fullgraph=True)(
            torch.ones(3, dtype=torch.float64)
        )
        assert graph_counts().captured == count
        assert y.tolist() == cache.values.tolist() == [2.0] * 3
        assert (cache.dtype, cache.device, cache.layout) == (
            torch.float64,
            torch.device("cpu"),
            torch.strided,
        )
        assert cache.order == (torch.channels_last, torch.preserve_format)
    assert len(records(tmp_path)) == 1


@pytest.mark.quick(1)
def test_training():
    x, model = torch.randn(4, 6), Net()

    def step(run: Callable[..., Any]) -> list[torch.Tensor]:
        loss = sum(y.square().sum() for y in run(x).values())
        return list(torch.autograd.grad(loss, list(model.parameters())))

    for number in range(2):
        as_in_a_new_process()
        compiled = torch.compile(model, backend="polyfuse")
        torch.testing.assert_close(step(compiled), step(model))
        assert graph_counts().captured == number
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        torch.testing.assert_close(step(compiled), step(model))


def test_dynamic_sizes():
    sizes = (4, 7, 9)
    for number in range(2):
        as_in_a_new_process()
        counters.clear()
        compiled = torch.compile(scaled, backend="polyfuse", dynamic=True)
        for size in sizes:
            x = torch.randn(size, 6)
            torch.testing.assert_close(compiled(x), scaled(x))
        assert graph_counts().captured == number
        # outside of what its guards say
        x = torch.randn(1, 6)
        torch.testing.assert_close(compiled(x), scaled(x))


@pytest.mark.quick(1)
def test_functions_that_a_network_holds_are_compared():
    """Dynamo's own way to store guards leaves these out."""
    x = torch.randn(4, 6)
    with torch.no_grad():
        assert [found(Net(f), x) for f in (torch.relu, torch.sigmoid, torch.relu)] == [0, 0, 1]

    def of(inner: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: inner(x) + 1

    assert [found(of(f), x) for f in (torch.sin, torch.cos, torch.sin)] == [0, 0, 1]


def test_what_guards_say_is_compared(monkeypatch):
    x, model = torch.randn(4, 6), Net()
    assert [found(scaled, x), found(scaled, x, 4), found(scaled, x)] == [0, 0, 1]
    monkeypatch.setitem(globals(), "OFFSET", 5)
    assert found(scaled, x) == 0
    with torch.no_grad():
        assert found(model, x) == 0
        model.sizes["more"] = 7
        assert found(model, x) == 0


def module_of(path: Path, text: str) -> ModuleType:
    path.write_text(text)
    sys.modules.pop(path.stem, None)
    importlib.invalidate_caches()
    files.file_text.cache_clear()
    return importlib.import_module(path.stem)


def test_sources_are_compared(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(code, "_BEGUN", time.time() + 1000)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path, x = tmp_path / "sourced.py", torch.randn(4)
    text = "def inner(x): return x * 2\n\ndef outer(x): return inner(x).sin()\n"
    for changed, number in ((text, 0), (text, 1), (text.replace("* 2", "* 3"), 0), (text, 1)):
        assert found(module_of(path, changed).outer, x) == number


def test_a_source_that_changed_since_it_was_imported_is_not_trusted(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(code, "_BEGUN", time.time() - 1000)
    module = module_of(tmp_path / "sourced_late.py", "def outer(x): return x * 2\n")
    assert [found(module.outer, torch.randn(4)) for _ in range(2)] == [0, 0]
    assert not records(tmp_path)


def test_a_damaged_record_is_removed(tmp_path):
    x = torch.randn(4, 6)
    found(scaled, x)
    (path,) = records(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert found(scaled, x) == 0
    assert found(scaled, x) == 1


def test_a_record_whose_graph_is_gone_is_removed(tmp_path):
    x = torch.randn(4, 6)
    found(scaled, x)
    for path in (tmp_path / "cache" / "compiled").glob("[!.]*/*"):
        path.unlink()
    assert [found(scaled, x), found(scaled, x)] == [0, 1]


def test_other_backends_are_not_concerned():
    x, seen = torch.randn(4, 6), []
    found(scaled, x)
    assert found(scaled, x) == 1

    def counting(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        seen.append(gm)
        return gm.forward

    torch.testing.assert_close(torch.compile(scaled, backend=counting)(x), scaled(x))
    assert len(seen) == 1


def test_a_record_serves_one_process_twice():
    x, models = torch.randn(4, 6), []
    with torch.no_grad():
        found(Net(), x)
        as_in_a_new_process()
        for number in (1, 2):
            model = Net()
            models.append(torch.compile(model, backend="polyfuse"))
            torch.testing.assert_close(models[-1](x), model(x))
            assert graph_counts().captured == number
            torch.compiler.reset()


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos()


def broken_at_once(x: torch.Tensor) -> torch.Tensor:
    print("a line that Dynamo leaves to Python")
    return x.sin()


def broken_by_a_value(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    return y.cos() if y.abs().sum().item() > 1e6 else y.sin()


def broken_in_a_context(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x.sin()
        torch._dynamo.graph_break()
        y = y.cos()
    return y * 2


def broken_with_a_closure(x: torch.Tensor) -> torch.Tensor:
    count = x.sin()

    def inner(y: torch.Tensor) -> torch.Tensor:
        nonlocal count
        count = count + 1
        return y * count

    torch._dynamo.graph_break()
    return inner(x)


def broken_in_a_called_function(x: torch.Tensor) -> torch.Tensor:
    return broken(x.sin()).cos()


def broken_in_a_list(x: torch.Tensor) -> torch.Tensor:
    return sum([broken(x * number) for number in range(1, 3)])


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("function", "frames"),
    [
        *((broken, 2), (broken_at_once, 2), (broken_by_a_value, 2), (broken_in_a_context, 2)),
        *((broken_with_a_closure, 2), (broken_in_a_called_function, 4)),
        # from Python 3.12 on, what makes a list has no frame of its own
        (broken_in_a_list, 4 if sys.version_info < (3, 12) else 3),
    ],
)
def test_functions_with_graph_breaks(function, frames):
    """What follows a break is a function, whose code is stored with what comes before it."""
    x, captured, traced = torch.linspace(-1, 1, 4), [], []
    for _ in range(2):
        as_in_a_new_process()
        counters.clear()
        compiled = torch.compile(function, backend="polyfuse")
        torch.testing.assert_close(compiled(x), function(x))
        torch.testing.assert_close(compiled(x), function(x))
        captured.append(graph_counts().captured)
        traced.append(counters["stats"]["unique_graphs"])
    assert captured[1] == frames and not traced[1]


def broken_twice(x: torch.Tensor, factor: int) -> torch.Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    y = y * factor
    torch._dynamo.graph_break()
    return y.cos()


@pytest.mark.parametrize("nested", [False, True])
def test_what_follows_a_break_is_traced_again_where_it_must_be(nested):
    """It may break there once more, though nobody here saw how its code came about."""
    x, function = torch.linspace(-1, 1, 4), broken_in_a_called_function if nested else broken_twice
    with torch._dynamo.config.patch(nested_graph_breaks=nested):
        for factor, found in ((2, 0), (2, 2 if nested else 3), (5, 2 if nested else 1)):
            args = (x,) if nested else (x, factor)
            as_in_a_new_process()
            torch.testing.assert_close(torch.compile(function, backend="polyfuse")(*args), function(*args))
            assert graph_counts().captured == found


class Asking(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x).relu()
        print("shape", tuple(y.shape))
        return self.last(y * 2 if y.sum().item() > 0 else y)


@pytest.mark.slow
def test_a_network_that_prints_and_asks_for_a_value():
    torch.manual_seed(0)
    x, model, frames = torch.randn(3, 4), Asking(), []
    for _ in range(2):
        as_in_a_new_process()
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(model, backend="polyfuse")(x), model(x))
        frames.append(graph_counts().captured)
    assert frames == [0, 3]


def test_a_network_that_prints_and_asks_for_a_value_in_training():
    """Nobody asks for the gradient of the value, so that its graph has no backward, and is not stored; what
    follows is then traced again."""
    torch.manual_seed(0)
    x, model, frames = torch.randn(3, 4), Asking(), []
    for _ in range(2):
        as_in_a_new_process()
        found = torch.autograd.grad(torch.compile(model, backend="polyfuse")(x).sum(), model.parameters())
        expected = torch.autograd.grad(model(x).sum(), model.parameters())
        torch.testing.assert_close(found, expected)
        frames.append(graph_counts().captured)
    assert frames == [0, 1]


@torch.library.custom_op("capture_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def with_an_operator(x: torch.Tensor) -> torch.Tensor:
    return twice(x.sin()).cos()


def with_a_local_class(x: torch.Tensor) -> torch.Tensor:
    class Local:
        factor = 2

    return x.sin() * Local.factor


@pytest.mark.quick(1)
@pytest.mark.parametrize(("function", "frames"), [(with_an_operator, 0), (with_a_local_class, 2)])
def test_operators_of_others_are_traced_again_and_classes_are_compared(function, frames, tmp_path):
    """Where a class is made is a graph break: what comes before it is found, and what follows, since all that
    the class holds is compared."""
    x = torch.randn(4)
    for number in range(2):
        as_in_a_new_process()
        torch.testing.assert_close(torch.compile(function, backend="polyfuse")(x), function(x))
        assert graph_counts().captured == number * frames
    assert len(records(tmp_path)) == frames


def test_it_is_off_unless_asked_for(monkeypatch, tmp_path):
    monkeypatch.delenv("POLYFUSE_CAPTURE_CACHE")
    x = torch.randn(4, 6)
    assert [found(scaled, x), found(scaled, x)] == [0, 0]
    assert not records(tmp_path)
    options = {"capture_cache": True}
    assert [found(scaled, x, options=options) for _ in range(2)] == [0, 1]


def test_options_and_modes_are_part_of_its_key():
    x = torch.randn(4, 6)
    assert found(scaled, x) == 0
    assert found(scaled, x, options={"numerics": "eager"}) == 0
    assert found(scaled, x, dynamic=True) == 0
    assert [found(scaled, x, options={"numerics": "eager"}), found(scaled, x, dynamic=True)] == [1, 1]


def test_code_that_asks_for_its_rank_holds_for_that_rank(monkeypatch, tmp_path):
    x = torch.randn(4, 6)
    monkeypatch.setattr(lookup, "this_rank", lambda: 0)
    monkeypatch.setattr(lookup, "_RANK", frozenset({"softmax"}))
    assert [found(scaled, x), found(scaled, x)] == [0, 1]
    monkeypatch.setattr(lookup, "this_rank", lambda: 1)
    assert [found(scaled, x), found(scaled, x)] == [0, 1]
    assert len(records(tmp_path)) == 2


def test_records_are_not_carried_to_other_machines():
    assert "captures" not in CARRIED


def broken_loop(x: torch.Tensor) -> torch.Tensor:
    for _ in range(3):
        x = x.sin() + 1
        torch._dynamo.graph_break()
    return x


def stacked(x: torch.Tensor) -> torch.Tensor:
    weights = x.unbind(0)
    y = weights[0]
    for weight in weights:
        y = (torch.nn.functional.layer_norm(y @ weight, (6,)).sigmoid() * weight).chunk(2)[0].repeat(2, 1)
        y = y.sin().tanh() + y.cos()
    return y


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (broken_loop, {}, "Dynamo leaves the frame to Python: Unsupported"),
        (scaled, {"fuel": 100}, "it is not looked up: the option 'fuel' is set"),
        (stacked, {"repeated_layers": "on"}, "its graph is compiled in regions"),
    ],
)
def test_why_a_frame_is_not_stored_is_counted(tmp_path, function, options, reason):
    as_in_a_new_process()
    x = torch.randn(8, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(
            torch.compile(function, backend="polyfuse", options=options)(x), function(x)
        )
    notes = KeyNotes(tmp_path / "cache")
    assert notes.captures() == {reason: 1}
    notes.clear()
    assert not notes.captures()


def test_inputs_of_another_type_are_a_counted_reason(tmp_path):
    as_in_a_new_process()
    x = TwoTensor(torch.randn(4, 6), torch.randn(4, 6))
    torch.testing.assert_close(torch.compile(scaled, backend="polyfuse")(x).a, scaled(x).a)
    assert list(KeyNotes(tmp_path / "cache").captures()) == [
        "its graph bypasses the graph cache: an input of it is a TwoTensor"
    ]


def test_a_graph_whose_backward_never_runs_is_counted_in_the_end(tmp_path, monkeypatch):
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(pending.atexit, "register", ends.append)
    as_in_a_new_process()
    torch.compile(scaled, backend="polyfuse")(torch.randn(4, 6, requires_grad=True))
    assert not records(tmp_path)
    (end,) = ends
    end()
    assert list(KeyNotes(tmp_path / "cache").captures()) == [
        "its graph was not stored: no backward of it has run"
    ]
