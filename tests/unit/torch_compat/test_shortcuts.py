"""What Dynamo is spared while it traces a frame for us, and that it is as it was afterwards."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch._dynamo import symbolic_convert
from torch._dynamo.variables import higher_order_ops

from polyfuse.torch_compat.captures.shortcuts import shortcuts


@pytest.fixture
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("before", [(700, 10, 10), (700, 3, 4)])
def test_young_objects_are_collected_less_often_inside_alone(
    before: tuple[int, int, int], thresholds: None
) -> None:
    gc.set_threshold(*before)
    with shortcuts():
        assert gc.get_threshold() == (50_000, *before[1:])
        with shortcuts():
            pass
        assert gc.get_threshold()[0] == 50_000
    assert gc.get_threshold() == before


@pytest.mark.parametrize("before", [(0, 10, 10), (50_000, 10, 10), (1_000_000, 2, 2)])
def test_collections_that_are_rarer_are_left_alone(before: tuple[int, int, int], thresholds: None) -> None:
    gc.set_threshold(*before)
    with shortcuts():
        assert gc.get_threshold() == before
    assert gc.get_threshold() == before


def test_what_was_set_inside_is_kept(thresholds: None) -> None:
    gc.set_threshold(700, 10, 10)
    with shortcuts():
        gc.set_threshold(900, 5, 5)
    assert gc.get_threshold() == (900, 5, 5)


def test_all_is_as_it_was_after_an_error(thresholds: None) -> None:
    gc.set_threshold(700, 10, 10)
    mapped = higher_order_ops.LocalMapWrappedHigherOrderVariable
    before = symbolic_convert.get_funcname, vars(mapped)["should_wrap_in_hop"]
    with pytest.raises(RuntimeError, match="planted"), shortcuts():
        raise RuntimeError("planted")
    assert (symbolic_convert.get_funcname, vars(mapped)["should_wrap_in_hop"]) == before
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("name", ["trace_call_log", "trace_source_log"])
def test_names_of_functions_are_found_where_calls_are_logged(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shortcuts():
        assert symbolic_convert.get_funcname(__file__, 1) is None
    log = logging.Logger("loud", logging.DEBUG)
    monkeypatch.setattr(symbolic_convert, name, log)
    kept = symbolic_convert.get_funcname
    with shortcuts():
        assert symbolic_convert.get_funcname is kept


_TRACED = """
import sys, torch
from torch._dynamo import funcname_cache
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
x = torch.randn(2, 4)
found = torch.compile(model, backend="polyfuse", fullgraph=True)(x)
torch.testing.assert_close(found, model(x))
print(len(funcname_cache.cache), "torch.distributed.tensor.experimental" in sys.modules)
"""


def test_a_process_splits_no_file_and_imports_no_maps() -> None:
    """Both would be seen by their traces in torch."""
    made = subprocess.run([sys.executable, "-c", _TRACED], capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["0", "False"], made.stderr


@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no torch.distributed")
def test_a_function_that_is_imported_inside_is_recognised() -> None:
    mapped = higher_order_ops.LocalMapWrappedHigherOrderVariable
    with shortcuts():
        from torch.distributed.tensor.experimental import _func_map

        assert mapped.should_wrap_in_hop(_func_map._local_map_wrapped) == mapped._enabled
        assert not mapped.should_wrap_in_hop(torch.relu)
