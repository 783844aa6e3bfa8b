"""One operator, for one kind of call, as a package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.export import Dim, export

from polyfuse.aot.container import Archive
from polyfuse.aot.loading import describe
from polyfuse.aot.operators import Call
from polyfuse.base.log import get_logger
from polyfuse.base.text import shorten
from polyfuse.compiler.packages.package import package

_log = get_logger("aot")


class _Operator(torch.nn.Module):
    """The operator with everything but its tensors filled in."""

    def __init__(self, op: Any, call: Call) -> None:
        super().__init__()
        self._op = op
        self._call = call

    def forward(self, *tensors: torch.Tensor) -> Any:
        args, kwargs = self._call.arguments(tensors)
        return self._op(*args, **kwargs)


def package_operator(
    op: Any, call: Call, path: Path, options: Mapping[str, Any] | None, mode: str | None
) -> str:
    """Write a package of an operator; return why there is none where it cannot be compiled."""
    examples = tuple(tensor.detach() for tensor in call.given)
    sizes = tuple(
        {dim: Dim.AUTO if n > 1 else Dim.STATIC for dim, n in enumerate(tensor.shape)} for tensor in examples
    )
    try:
        with torch.no_grad():
            program = export(_Operator(op, call), examples, dynamic_shapes=(sizes,) if call.dynamic else None)
        package(program, path=path, options=options, mode=mode)
        with Archive(path) as archive:
            launches = any(entry.kernels for entry in describe(archive).entries.values())
    except Exception as error:  # whatever it is, torch's own kernel computes the call
        _log.debug("%s is not compiled", op, exc_info=True)
        path.unlink(missing_ok=True)
        return f"it cannot be compiled ({type(error).__name__}: {shorten(str(error), 200)})"
    if not launches:
        path.unlink()
        return "no kernel is generated for it: a library computes it either way"
    return ""
