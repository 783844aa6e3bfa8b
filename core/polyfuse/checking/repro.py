"""A launch in a file: the kernel's text, who generated it and how, and its operands; or a call of a kernel
that is written by hand, as the operator of torch that computes the same.

The file holds tensors, texts and numbers alone, and is read as such: nothing in it is run but the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.files import replacing
from polyfuse.checking.operands import Layout, copied, guarded_block
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.print import text

if TYPE_CHECKING:
    from polyfuse.plugin.source import Expected

_KIND, _CALL = "polyfuse launch", "polyfuse call"
_MOST_BYTES = 1 << 30
"""Larger operands are left out, and made up when the file is run."""


@dataclass(frozen=True)
class Repro:
    """A launch.

    Attributes:
        kernel: its text.
        backend, config: who generated it, and in which configuration, as text.
        options: that change generated code.
        about: what was found, for people.
        operands: tensors that share memory as those of the launch did, and sizes; empty if left out.
    """

    kernel: str
    backend: str
    config: str
    options: dict[str, Any]
    about: str
    operands: tuple[Tensor | int, ...]


def write_repro(
    path: Path,
    kernel: Kernel,
    backend: str,
    config: str,
    options: dict[str, Any],
    about: str,
    operands: Sequence[Any],
    layout: Layout,
) -> Path:
    """Write a launch to a file."""
    held: dict[str, Any] = {"operands": None}
    if sum(nbytes for _, nbytes in layout.blocks) <= _MOST_BYTES:
        made = copied(operands, layout)
        held["blocks"] = [block.bytes.cpu().clone() for block in made.blocks]
        held["residues"] = [address % 256 for address, _ in layout.blocks]
        held["operands"] = [
            int(value) if span is None else [span.block, span.offset, span.nbytes]
            for value, span in zip(operands, layout.spans, strict=True)
        ]
    content = {
        "kind": _KIND,
        "kernel": text(kernel, comments=False),
        "backend": backend,
        "config": config,
        "options": options,
        "about": about,
        **held,
    }
    return _saved(content, path)


def _saved(content: dict[str, Any], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        torch.save(content, temporary)
    return path


@dataclass(frozen=True)
class CallRepro:
    """A call of a kernel that is written by hand.

    Attributes:
        operator, args, kwargs: of torch, which computes the same.
        plugin: whose kernel it was.
        options: by which such calls become kernels.
        about: what was found, for people.
    """

    operator: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    plugin: str
    options: dict[str, Any]
    about: str


def write_call(path: Path, plugin: str, expected: Expected, about: str, options: dict[str, Any]) -> Path:
    """Write a call to a file."""
    content = {
        "kind": _CALL,
        "operator": expected.operator,
        "args": [_alone(value, "cpu") for value in expected.args],
        "kwargs": {name: _alone(value, "cpu") for name, value in expected.kwargs.items()},
        "plugin": plugin,
        "options": options,
        "about": about,
    }
    return _saved(content, path)


def _alone(value: Any, device: str) -> Any:
    """A tensor with its strides, in memory of its own that holds nothing else."""
    if not isinstance(value, Tensor):
        return value
    extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    flat = value.detach().as_strided((extent if value.numel() else 0,), (1,)).clone().to(device)
    return flat.as_strided(value.shape, value.stride())


def read_call(path: Path, device: str = "cpu") -> CallRepro | None:
    """Read a call; None where the file holds another kind of launch.

    Raises:
        PolyfuseError: the file holds none.
    """
    try:
        content = torch.load(path, weights_only=True)
        if content.get("kind") != _CALL:
            return None
        return CallRepro(
            str(content["operator"]),
            tuple(_alone(value, device) for value in content["args"]),
            {name: _alone(value, device) for name, value in content["kwargs"].items()},
            *(content[name] for name in ("plugin", "options", "about")),
        )
    except (OSError, KeyError, AttributeError, ValueError, RuntimeError) as error:
        raise PolyfuseError(f"{path} holds no launch ({error})", "name a file that a check wrote") from error


def is_repro(path: Path) -> bool:
    """Whether a file was written by `write_repro` or `write_call`, by its first bytes."""
    try:
        with path.open("rb") as file:
            return file.read(2) == b"PK"
    except OSError:
        return False


def read_repro(path: Path, device: str = "") -> Repro:
    """Read a launch.

    Args:
        device: where the operands are put; empty: on the CPU.

    Raises:
        PolyfuseError: the file holds no launch.
    """
    try:
        content = torch.load(path, weights_only=True)
        if content.get("kind") != _KIND:
            raise KeyError("kind")
        operands: list[Tensor | int] = []
        if content["operands"] is not None:
            blocks = [
                guarded_block(block.numel(), residue, device or "cpu").bytes.copy_(block)
                for block, residue in zip(content["blocks"], content["residues"], strict=True)
            ]
            for item in content["operands"]:
                if isinstance(item, int):
                    operands.append(item)
                else:
                    operands.append(blocks[item[0]][item[1] : item[1] + item[2]])
        return Repro(
            content["kernel"],
            content["backend"],
            content["config"],
            content["options"],
            content["about"],
            tuple(operands),
        )
    except (OSError, KeyError, AttributeError, ValueError, RuntimeError) as error:
        raise PolyfuseError(f"{path} holds no launch ({error})", "name a file that a check wrote") from error
