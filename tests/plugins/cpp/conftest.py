"""Kernels of a module's tests are built together, before the first of them runs."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch

import cpp_kernels
from polyfuse.compiler.reports.report import reset_reports
from polyfuse.compiler.session import forget_sessions


@pytest.fixture(scope="module", autouse=True)
def built_ahead(request: pytest.FixtureRequest) -> Iterator[None]:
    """For tests without other fixtures than parameters, in modules that compile kernels by `cpp_kernels`."""
    if getattr(request.module, "compiled", None) is cpp_kernels.compiled:
        threads = torch.get_num_threads()
        tests = []
        for item in request.session.items:
            if isinstance(item, pytest.Function) and item.module is request.module:
                values = item.callspec.params if hasattr(item, "callspec") else {}
                names = item.obj.__code__.co_varnames[: item.obj.__code__.co_argcount]
                if set(names) <= set(values) and not any(item.iter_markers("skip")):
                    tests.append(functools.partial(item.obj, **{name: values[name] for name in names}))
        cpp_kernels.build_ahead(tests)
        torch.set_num_threads(threads)
    yield


@pytest.fixture
def fresh_sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Graphs are compiled anew, their reports are the test's own, and numbers are drawn from one seed."""
    monkeypatch.setenv("POLYFUSE_GRAPH_CACHE", "0")
    forget_sessions()
    reset_reports()
    torch.compiler.reset()
    torch.manual_seed(0)
    yield
    forget_sessions()


@pytest.fixture
def packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are packed once for all calls however small they are."""
    monkeypatch.setattr("polyfuse.autotune.gemm_candidates._FEW_NUMBERS", 0)
