"""What Dynamo is spared while it traces a frame for us, and that it is as it was afterwards."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys

import pytest
import torch
from torch._dynamo import guards, symbolic_convert
from torch._dynamo.variables import higher_order_ops

from polyfuse.torch_compat.captures import frames
from polyfuse.torch_compat.captures.shortcuts import shortcuts


def test_all_is_as_it_was_after_an_error() -> None:
    rare = gc.get_threshold()
    mapped = higher_order_ops.LocalMapWrappedHigherOrderVariable
    before = symbolic_convert.get_funcname, vars(mapped)["should_wrap_in_hop"]
    with pytest.raises(RuntimeError, match="planted"), shortcuts():
        raise RuntimeError("planted")
    assert (symbolic_convert.get_funcname, vars(mapped)["should_wrap_in_hop"]) == before
    assert gc.get_threshold() == rare


@pytest.mark.parametrize(("objects", "asked"), [(0, 3), (800_000, 1)])
def test_frozen_objects_are_counted_once(objects: int, asked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def count() -> int:
        calls.append(gc.isenabled())
        return objects

    monkeypatch.setattr(frames, "_frozen", False)
    monkeypatch.setattr(gc, "get_freeze_count", count)
    for _ in range(3):
        with frames.collections_deferred():
            assert not gc.isenabled()
        assert gc.isenabled()
    assert calls == [False] * asked


@pytest.mark.parametrize("name", ["trace_call_log", "trace_source_log"])
def test_names_of_functions_are_found_where_calls_are_logged(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shortcuts():
        assert symbolic_convert.get_funcname(__file__, 1) is None
    log = logging.Logger("loud", logging.DEBUG)
    monkeypatch.setattr(symbolic_convert, name, log)
    before = symbolic_convert.get_funcname
    with shortcuts():
        assert symbolic_convert.get_funcname is before


def test_guards_are_timed_by_their_own_checks() -> None:
    checked = []

    class Root:
        def check(self, f_locals: dict[str, int]) -> bool:
            checked.append(f_locals)
            return True

    its_own = guards.profile_guard_manager
    with shortcuts():
        found = guards.profile_guard_manager(Root(), {"x": 1}, 3)
    assert found > 0
    assert checked == [{"x": 1}] * 3
    assert guards.profile_guard_manager is its_own


_TRACED = """
import sys, torch
from torch._dynamo import funcname_cache
from torch._dynamo.utils import get_compilation_metrics
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
x = torch.randn(2, 4)
found = torch.compile(model, backend="polyfuse", fullgraph=True)(x)
torch.testing.assert_close(found, model(x))
latency = get_compilation_metrics()[-1].guard_latency_us
print(len(funcname_cache.cache), "torch.distributed.tensor.experimental" in sys.modules, latency is not None)
"""


@pytest.mark.slow  # in a process of its own, from the import of torch on: the tests above have it in this one
def test_a_process_splits_no_file_and_imports_no_maps() -> None:
    """Both would be seen by their traces in torch."""
    made = subprocess.run([sys.executable, "-c", _TRACED], capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["0", "False", "True"], made.stderr


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_a_function_that_is_imported_inside_is_recognised() -> None:
    mapped = higher_order_ops.LocalMapWrappedHigherOrderVariable
    with shortcuts():
        from torch.distributed.tensor.experimental import _func_map

        assert mapped.should_wrap_in_hop(_func_map._local_map_wrapped) == mapped._enabled
        assert not mapped.should_wrap_in_hop(torch.relu)
