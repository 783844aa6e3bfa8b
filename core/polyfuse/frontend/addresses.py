"""Where functions of torch and of Python are found again, as text that is the same in every process."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

# Operators of these namespaces are part of torch, so that its version says what they do.
TORCH_NAMESPACES = frozenset({"aten", "prim", "prims", "_c10d_functional", "polyfuse_symmetric"})

# Values whose representation says all.
PLAIN = (
    *(int, float, complex, bool, str, type(None), type(Ellipsis)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)

# Packages that come with torch or Python, whose versions say what their functions do.
TORCH_AND_PYTHON = frozenset({"torch", "_operator", "builtins", "math"})

_FOLDER = Path(torch.__file__).parent


def address_of(value: Any, homes: Collection[str] = TORCH_AND_PYTHON) -> str:
    """The module and name of a function or class, as `module:name`, under which it is found; empty if it is
    not there, was replaced, or belongs to none of the packages `homes`.
    """
    owner = getattr(value, "__objclass__", None)
    module = str(getattr(owner or value, "__module__", ""))
    names = (getattr(value, "__qualname__", ""), getattr(value, "__name__", ""))
    for name in names if module.partition(".")[0] in homes else ():
        if _lookup(module, name) is value and _is_original(value, module):
            return f"{module}:{name}"
    return ""


def _is_original(value: Any, module: str) -> bool:
    """Whether a function is the one that its module came with, and was not replaced."""
    code = getattr(inspect.unwrap(value), "__code__", None)
    if code is None:
        return True
    folder = _FOLDER if module.partition(".")[0] == "torch" else Path(inspect.__file__).parent
    return Path(code.co_filename).is_relative_to(folder)


def _lookup(module: str, name: str) -> Any:
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found
