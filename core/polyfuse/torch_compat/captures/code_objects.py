"""Code that Dynamo made, as bytes for another process, and with other names."""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from types import CodeType
from typing import Any, Final, cast

from polyfuse.torch_compat.captures.guards import Unstorable

_SCOPE: Final = "polyfuse: the global variables of the frame"
_WRITTEN: Final = "polyfuse: a name of torch"


def dumped(code: CodeType, scope: dict[str, Any]) -> bytes:
    """Code as bytes; of its constants, the global variables `scope` for functions that it makes are left out,
    and torch's names of types and devices are written out.

    Raises:
        Unstorable: it holds objects that cannot be marshalled.
    """
    constants = tuple(_SCOPE if constant is scope else _written(constant) for constant in code.co_consts)
    try:
        return marshal.dumps(code.replace(co_consts=constants))
    except ValueError as error:
        raise Unstorable("its code holds objects") from error


def loaded(program: bytes, scope: dict[str, Any]) -> CodeType:
    """The code of which `dumped` made bytes, for functions with these global variables."""
    code = marshal.loads(program)
    constants = tuple(scope if constant == _SCOPE else _read(constant) for constant in code.co_consts)
    return cast("CodeType", code.replace(co_consts=constants))


def _written(constant: Any) -> Any:
    """A constant that a program holds, as what may be marshalled: a cache that it returns has a type and a
    device."""
    import torch

    if isinstance(constant, torch.device):
        return _WRITTEN, "device", str(constant)
    if isinstance(constant, torch.dtype | torch.layout | torch.memory_format):
        return _WRITTEN, "", str(constant).removeprefix("torch.")
    return tuple(map(_written, constant)) if type(constant) is tuple else constant


def _read(constant: Any) -> Any:
    """The constant that was written as another."""
    import torch

    if type(constant) is not tuple:
        return constant
    if constant[:1] != (_WRITTEN,):
        return tuple(map(_read, constant))
    _, kind, text = constant
    return torch.device(text) if kind else getattr(torch, text)


def renamed(code: CodeType, new: Mapping[str, str]) -> CodeType:
    """Code that has new names for some of its global variables and attributes."""
    return code.replace(
        co_names=tuple(new.get(name, name) for name in code.co_names),
        co_consts=tuple(
            renamed(item, new) if isinstance(item, CodeType) else item for item in code.co_consts
        ),
    )


def mentions(code: CodeType, name: str) -> bool:
    """Whether code, or what it holds of functions, uses a name."""
    inside = (item for item in code.co_consts if isinstance(item, CodeType))
    return name in code.co_names or any(mentions(item, name) for item in inside)
