"""Kernels that plugins wrote by hand, which programs call as objects, beside what their plugins say that they
compute (`polyfuse.plugin.WrittenKernel`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from polyfuse.base.errors import BackendError
from polyfuse.base.log import get_logger, warn_once
from polyfuse.checking import tally
from polyfuse.checking.compare import Mismatch, agree, mismatch
from polyfuse.checking.operands import Layout, copied, layout_of
from polyfuse.checking.tally import Finding
from polyfuse.ir.kernel import KernelArg
from polyfuse.ir.nodes import OBJECT_CALL, ExternCall
from polyfuse.ir.types import DType, from_torch
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.provisional import is_out_of_memory

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.checking.records import Records
    from polyfuse.ir.nodes import Node, Origin
    from polyfuse.plugin.source import Expected, WrittenKernel

_log = get_logger("checking")
_MOST_FAMILIAR = 1024


Origins: TypeAlias = tuple[tuple[str, "tuple[Origin, ...]"], ...]
"""What calls of objects come from, by the objects' keys."""


def called_from(nodes: Iterable[Node], objects: Mapping[str, object]) -> Origins:
    """What calls of written kernels come from."""
    calls = (node for node in nodes if isinstance(node, ExternCall) and node.op.startswith(OBJECT_CALL))
    found = ((node.op.removeprefix(OBJECT_CALL), node.origins) for node in calls)
    return tuple((key, origins) for key, origins in found if hasattr(objects.get(key), "expected"))


def checked_calls(
    objects: Mapping[str, object],
    origins: Origins,
    settings: Settings,
    records: Records,
    folder: Path,
) -> dict[str, object]:
    """Objects of a program, with written kernels checked as the option `check` says, and those that are
    barred replaced by the library's call.

    Args:
        origins: as `called_from` returned them.
        folder: where launches that differ are written to.
    """
    found = dict(objects)
    if settings.check == "off" and not records.any_barred:
        return found
    named = dict(origins)
    for key, value in objects.items():
        if not hasattr(value, "expected"):
            continue
        written: WrittenKernel = value  # type: ignore[assignment]
        if not tally.forgets() and records.barred(records.bar_key(written.key, {}), ""):
            found[key] = written.by_library
        elif settings.check != "off":
            found[key] = CheckedCall(written, named.get(key, ()), settings, records, folder)
    return found


@dataclass(frozen=True)
class _Arguments:
    """What the operands of a call are, as `layout_of` asks for them."""

    args: tuple[KernelArg, ...]


class CheckedCall:
    """A written kernel whose launches are compared with what its plugin expects: the first of each kind, or
    all. It runs on copies; what it made is put into the operands once it is known to be right.
    """

    def __init__(
        self,
        kernel: WrittenKernel,
        origins: tuple[Origin, ...],
        settings: Settings,
        records: Records,
        folder: Path,
    ) -> None:
        self.__name__ = kernel.__name__
        self.storable = getattr(kernel, "storable", False)
        self.records = getattr(kernel, "records", False)
        self._kernel = kernel
        self._origins = origins
        self._settings = settings
        self._records = records
        self._folder = folder
        self._lock = threading.Lock()
        self._familiar: set[tuple[Any, ...]] = set()
        self._replaced = False

    def __call__(self, *operands: Any) -> None:
        """Launch."""
        if self._replaced:
            self._kernel.by_library(*operands)
            return
        device = next((one.device.type for one in operands if isinstance(one, Tensor)), "cpu")
        if device_of(device).is_recording():
            # it ran before, and was checked then
            self._kernel(*operands)
            return
        alike = tuple([one.data_ptr() % 64 if isinstance(one, Tensor) else one for one in operands])
        if alike in self._familiar and self._settings.check != "all":
            self._kernel(*operands)
            return
        with self._lock:
            if self._agreed(alike):
                self._kernel(*operands)
            elif self._replaced:
                self._kernel.by_library(*operands)
            else:
                self._checked(operands, alike)

    def _agreed(self, alike: tuple[Any, ...]) -> bool:
        if self._settings.check == "all":
            return False
        kind = _kind(alike)
        if tally.forgets():
            found = tally.seen(self._kernel.key, kind)
        else:
            found = self._records.agreed(self._record, kind)
        if found:
            self._remember(alike)
        return found

    @property
    def _record(self) -> str:
        return self._records.key(self._kernel.key, {}, "")

    def _remember(self, alike: tuple[Any, ...]) -> None:
        if len(self._familiar) >= _MOST_FAMILIAR:
            self._familiar.clear()
        self._familiar.add(alike)

    def _checked(self, operands: Sequence[Any], alike: tuple[Any, ...]) -> None:
        kernel = self._kernel
        try:
            expected = kernel.expected(*operands)
            if expected is None:  # the library computes this one
                kernel(*operands)
                return
            problem = self._compared(expected, operands)
        except Exception as error:
            if not isinstance(error, _Unknown) and not is_out_of_memory(error):
                raise
            unknown = isinstance(error, _Unknown)
            tally.skip(self.__name__, str(error) if unknown else "its operands do not fit into memory twice")
            kernel(*operands)
            return
        tally.checked(kernel.key, _kind(alike))
        if problem:
            self._differs(problem, expected, operands)
            return
        if self._settings.check != "all":
            self._remember(alike)
            self._records.agree(self._record, _kind(alike), self.__name__)

    def _compared(self, expected: Expected, operands: Sequence[Any]) -> str:
        """How a launch on copies differs, in words; where it does not, operands get its results."""
        arguments, layout = _layout(expected, operands)
        if layout is None:
            raise _Unknown("its operands have no memory of known elements")
        wanted, found = copied(operands, layout), copied(operands, layout)
        for at in expected.results.keys() - expected.updated:
            _spoil(found.operands[at])
        self._kernel(*found.operands)
        if not all(block.is_intact() for block in found.blocks):
            return "it wrote beside its buffers"
        worst: Mismatch | None = None
        for at, (values, errors) in expected.results.items():
            got, truth = found.operands[at], wanted.operands[at]
            assert isinstance(got, Tensor) and isinstance(truth, Tensor)
            right = values.to(got.dtype)
            good = agree(got, right, errors, errors == 0)
            item = mismatch(arguments.args[at].name, got, right, errors, good)
            if item is not None and (worst is None or item.count > worst.count):
                worst = item
            truth.copy_(got)
        if worst is not None:
            return str(worst)
        # nothing else may have changed, neither what it reads nor what lies between elements of results
        if any(not torch.equal(a.bytes, b.bytes) for a, b in zip(found.blocks, wanted.blocks, strict=True)):
            return "it changed what is none of its results"
        for at in expected.results:
            operands[at].copy_(found.operands[at])
        return ""

    def _differs(self, problem: str, expected: Expected, operands: Sequence[Any]) -> None:
        """Report a kernel, bar it, and give the operands what was expected.

        Raises:
            BackendError: with the option `strict`, instead.
        """
        kernel, records = self._kernel, self._records
        finding = self._finding(problem, expected)
        tally.add(finding)
        about = {"kernel": self.__name__, "backend": kernel.plugin, "repro": finding.repro}
        records.bar(records.bar_key(kernel.key, {}), problem, about)
        if self._settings.strict:
            raise BackendError(str(finding), "report it to the plugin's author with the file")
        warn_once("checking", f"{finding}; it is not used here any more", key=f"{kernel.key} {kernel.plugin}")
        self._replaced = True
        kernel.by_library(*operands)

    def _finding(self, problem: str, expected: Expected) -> Finding:
        from polyfuse.checking.repro import write_call

        path = self._folder / f"{self.__name__}-{self._kernel.plugin}-{self._kernel.key[:12]}.pt"
        about = f"{self.__name__}: {problem}"
        try:
            about_it = self._kernel.plugin, expected, about, _options(self._settings)
            repro = str(write_call(path, *about_it)) if expected.operator else ""
        except Exception as error:
            _log.info("the call of %s cannot be written to %s: %s", self.__name__, path, error)
            repro = ""
        return Finding(
            self.__name__,
            self._kernel.plugin,
            "",
            tuple(dict.fromkeys(o.op for o in self._origins)) or (expected.operator or self.__name__,),
            next((o.source for o in self._origins if o.source), ""),
            problem,
            repro,
            "what its plugin expects of it",
        )


class _Unknown(Exception):
    """Why a launch cannot be compared."""


def _options(settings: Settings) -> dict[str, Any]:
    """The options that say which calls become written kernels."""
    return {"gemm": settings.gemm, "numerics": settings.numerics}


def _layout(expected: Expected, operands: Sequence[Any]) -> tuple[_Arguments, Layout | None]:
    arguments: list[KernelArg] = []
    results = sorted(expected.results)
    for at, value in enumerate(operands):
        name = f"result{results.index(at)}" if at in results else f"operand{at}"
        if not isinstance(value, Tensor):
            arguments.append(KernelArg(name, "size", DType.i64, None))
            continue
        extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
        if at in expected.beginnings:
            extent = value.untyped_storage().nbytes() // value.element_size() - value.storage_offset()
        kind = "out" if at in results else "in"
        dtype = from_torch(value.dtype)
        if dtype is None:
            return _Arguments(()), None
        arguments.append(KernelArg(name, kind, dtype, extent if value.numel() else 0))
    made = _Arguments(tuple(arguments))
    return made, layout_of(made, operands)


def _spoil(result: object) -> None:
    """Make sure that what a kernel must write is wrong before."""
    assert isinstance(result, Tensor)
    if result.dtype.is_floating_point:
        result.fill_(torch.nan)
    else:
        result.fill_(torch.iinfo(result.dtype).min + 77)


def _kind(alike: tuple[Any, ...]) -> str:
    """What a written kernel may treat differently: small sizes, multiples of 16, and alignment."""
    return " ".join(str(one) if -64 < one < 64 else "m" if one % 16 == 0 else "n" for one in alike)
