"""Whether the parts of a description fit each other and the members of its package: looked at once, before
anything of a package is used, so that what loads it need not ask again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from polyfuse.aot.container import ALIGNMENT, Member
from polyfuse.aot.description import Argument, Description, Entry, Function, Operand, Unit, Weight, programs
from polyfuse.aot.sizes import size_problem
from polyfuse.cache.zip_reader import is_plain_name

_DEVICE: Final = re.compile(r"[a-z]{1,20}(:\d{1,4})?")
_DTYPE: Final = re.compile(r"[a-z][a-z0-9_]{1,40}")
_LOADER: Final = re.compile(r"[A-Za-z_][\w.]{0,200}:[A-Za-z_]\w{0,100}")
_MODULE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_VERSION: Final = re.compile(r"\d{1,6}\.\d{1,6}([.+\w-]{0,100})")
_MOST_DIMENSIONS: Final = 64
_LARGEST: Final = 1 << 62


def unsoundness(description: Description, members: Mapping[str, Member]) -> str:
    """What is wrong with a description; empty if nothing is."""
    return next(_problems(description, members), "")


def _problems(found: Description, members: Mapping[str, Member]) -> Iterator[str]:
    for name in ("polyfuse", "torch", "python"):
        if not _VERSION.fullmatch(found.versions.get(name, "")):
            yield f"it has no version of {name}"
    if not found.entries:
        yield "it has no entry"
    yield from (f"{text[:80]!r} is no device" for text in found.devices if not _DEVICE.fullmatch(text))
    yield from (f"{text[:80]!r} is no module" for text in found.modules if not _MODULE.fullmatch(text))
    for name, import_path in found.device_classes.items():
        if name not in found.devices or not _LOADER.fullmatch(import_path):
            yield f"the device {name[:80]!r} has no class"
    for name, note in found.backends.items():
        if note.loader and not _LOADER.fullmatch(note.loader):
            yield f"the backend {name[:80]} has no loader"
    for name, unit in found.units.items():
        yield from _unit(name, unit, found, members)
    size = 0
    if found.weight_member:
        if found.weight_member not in members:
            yield f"its weights {found.weight_member[:80]!r} are missing"
        else:
            size = members[found.weight_member].size
    for row in found.weights:
        yield from _weight(row, size)
    for name, entry in found.entries.items():
        yield from (f"entry {name[:80]}: {text}" for text in _entry(name, entry, found, members))


def _unit(name: str, unit: Unit, found: Description, members: Mapping[str, Member]) -> Iterator[str]:
    if unit.backend not in found.backends:
        yield f"the kernels {name[:80]!r} are of no backend"
    for file in unit.files:
        if not is_plain_name(f"kernels/{name}/{file}") or f"kernels/{name}/{file}" not in members:
            yield f"the kernels {name[:80]!r} lack the file {file[:80]!r}"


def _weight(row: Weight, room: int) -> Iterator[str]:
    where = f"the weight {row.name[:80]!r}"
    if row.kind not in ("parameter", "buffer", "constant") or not _DTYPE.fullmatch(row.dtype):
        yield f"{where} is of no kind or type"
    if len(row.size) != len(row.stride) or len(row.size) > _MOST_DIMENSIONS:
        yield f"{where} has no layout"
    if not _DEVICE.fullmatch(row.device):
        yield f"{where} has no device"
    if any(not 0 <= n < _LARGEST for n in (*row.size, *row.stride, row.bytes)):
        yield f"{where} has a size that is none"
    if row.offset != -1 and (row.offset < 0 or row.offset % ALIGNMENT or row.offset + row.bytes > room):
        yield f"{where} lies outside of the weights"


def _entry(name: str, entry: Entry, found: Description, members: Mapping[str, Member]) -> Iterator[str]:
    if not name.isidentifier():
        yield "its name is no identifier"
    if entry.native and entry.native not in members:
        yield f"{entry.native[:80]!r} is missing"
    for program in programs(entry):
        yield from _program(program, found, members)
    rooms = {"argument": len(entry.arguments), "weight": len(found.weights)}
    if any(not 0 <= item.position < rooms.get(item.origin, 0) for item in entry.inputs):
        yield "it has an input that comes from nowhere"
    for argument in entry.arguments:
        yield from _argument(argument)
    for text in entry.conditions:
        if size_problem(text):
            yield f"the condition {text[:80]!r} is none: {size_problem(text)}"


def _program(program: Entry | Function, found: Description, members: Mapping[str, Member]) -> Iterator[str]:
    for member in (program.program, program.kernel_texts):
        if (member or member == program.program) and member not in members:
            yield f"{member[:80]!r} is missing"
    for kernel, (unit, _) in (*program.kernels.items(), *program.calls.items()):
        if unit not in found.units:
            yield f"the kernel {kernel[:80]} is in no unit"
    if any(not 0 <= at < len(found.weights) for at in program.objects.values()):
        yield "it reads a constant that there is not"
    keys = (*program.objects, *program.calls, *(function.key for function in program.functions))
    if len(set(keys)) < len(keys):
        yield "two of its objects have one key"
    if isinstance(program, Function):
        for operand in program.operands:
            yield from _operand(operand, f"an argument of the function {program.key[:80]!r}")


def _operand(operand: Operand, where: str) -> Iterator[str]:
    if operand.kind not in ("fixed", "dense", "any"):
        yield f"{where} is of no kind"
    if len(operand.size) != len(operand.stride) or len(operand.size) > _MOST_DIMENSIONS:
        yield f"{where} has no layout"
    if any(not 0 <= n < _LARGEST for n in (*operand.size, *operand.stride)):
        yield f"{where} has a size that is none"


def _argument(argument: Argument) -> Iterator[str]:
    where = f"the argument {argument.name[:80]!r}"
    tensor = argument.kind == "tensor"
    if argument.kind not in ("tensor", "number", "fixed"):
        yield f"{where} is of no kind"
    if tensor and not (_DTYPE.fullmatch(argument.dtype) and _DEVICE.fullmatch(argument.device)):
        yield f"{where} has no type or device"
    rank = len(argument.size)
    if rank > _MOST_DIMENSIONS or (tensor and rank != len(argument.stride)):
        yield f"{where} has no layout"
    if argument.kind == "number" and rank != 1:
        yield f"{where} has no value"
    for text in (*argument.size, *argument.stride):
        if size_problem(text):
            yield f"{where} has the size {str(text)[:80]!r}: {size_problem(text)}"
