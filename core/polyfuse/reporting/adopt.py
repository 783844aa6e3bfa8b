"""Compiles programs that do not ask for it: what `polyfuse report --compile` does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch

from polyfuse.torch_compat.tracing.frames import is_compiled


@contextmanager
def adopting() -> Iterator[None]:
    """Inside, each module that a program calls is compiled, those within it as parts of it, and
    `torch.compile` uses Polyfuse where it names no backend.
    """
    compile_, call = torch.compile, torch.nn.Module.__call__
    _set(torch, "compile", _compiling(compile_))
    _set(torch.nn.Module, "__call__", _calling(call, compile_))
    try:
        yield
    finally:
        _set(torch, "compile", compile_)
        _set(torch.nn.Module, "__call__", call)


def _compiling(original: Callable[..., Any]) -> Callable[..., Any]:
    default = inspect.signature(original).parameters["backend"].default

    @wraps(original)
    def compile_(model: Any = None, **given: Any) -> Any:
        if given.get("backend", default) == default:
            # options are those of another compiler
            given = {**given, "backend": "polyfuse", "options": None}
        return original(model, **given)

    return compile_


def _calling(original: Callable[..., Any], compile_: Callable[..., Any]) -> Callable[..., Any]:
    # not by Module.compile: Dynamo would pass over modules of torch, such as Sequential
    compiled: WeakKeyDictionary[torch.nn.Module, Any] = WeakKeyDictionary()

    @wraps(original)
    def call(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        # what this module calls belongs to it, and Dynamo must meet calls as they are
        _set(torch.nn.Module, "__call__", original)
        try:
            if is_compiled(self):
                return original(self, *args, **kwargs)
            if self not in compiled:
                compiled[self] = compile_(self, backend="polyfuse")
            return compiled[self](*args, **kwargs)
        finally:
            _set(torch.nn.Module, "__call__", call)

    return call


def _set(owner: Any, name: str, value: Any) -> None:
    setattr(owner, name, value)
