"""What an entry is called with: put in order, taken apart, and compared with what it was compiled for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from polyfuse.aot.description import Argument, Entry, Size
from polyfuse.aot.sizes import condition_holds, size_names, size_value
from polyfuse.base.errors import PackageError
from polyfuse.torch_compat.tracing import pytree


class Signature:
    """The arguments of one entry."""

    def __init__(self, name: str, entry: Entry) -> None:
        self._name = name
        self._entry = entry
        self._spec = nesting(entry.in_tree)
        sized = {n for a in entry.arguments if a.kind != "fixed" for size in a.size for n in size_names(size)}
        self._by_strides = any(set(size_names(s)) - sized for a in entry.arguments for s in a.stride)
        # the last sizes that were found to be right: most calls have the sizes of the one before
        self._known: tuple[tuple[Any, ...], Mapping[str, int]] | None = None

    def leaves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The flat arguments of a call, in the order of the entry's."""
        found, spec = pytree.flatten((args, dict(kwargs)))
        if spec != self._spec:
            found, spec = pytree.flatten(self._named(args, kwargs))
        if spec != self._spec:
            raise self._wrong(f"arguments are nested as {spec} where {self._spec} was compiled")
        return found

    def _named(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The same call with each argument given as it was when the package was made."""
        positional, keywords = self._entry.positional, self._entry.keywords
        names = (*positional, *keywords)
        if len(args) > len(names):
            raise self._wrong(f"{len(args)} arguments were given where it takes {len(names)}")
        given = dict(zip(names, args))
        for name, value in kwargs.items():
            if name in given or name not in names:
                why = "was given twice" if name in given else "is not known"
                raise self._wrong(f"the argument {name} {why}; it takes {', '.join(names) or 'none'}")
            given[name] = value
        for name in names:
            if name not in given:
                given[name] = self._fixed(name)
        return tuple(given[name] for name in positional), {name: given[name] for name in keywords}

    def _fixed(self, wanted: str) -> Any:
        """The value that was compiled in for an argument that a call leaves out."""
        first = 0
        parts = (part for whole in self._spec.children() for part in whole.children())
        for name, part in zip((*self._entry.positional, *self._entry.keywords), parts):
            leaves = self._entry.arguments[first : first + part.num_leaves]
            first += part.num_leaves
            if name == wanted and all(leaf.kind == "fixed" for leaf in leaves):
                return pytree.unflatten([leaf.value for leaf in leaves], part)
        raise self._wrong(f"the argument {wanted} is missing")

    def check(self, leaves: Sequence[Any]) -> Mapping[str, int]:
        """Compare the arguments with what was compiled; return the values of symbols."""
        shapes: list[Any] = []
        for value, argument in zip(leaves, self._entry.arguments, strict=True):
            if argument.kind == "tensor":
                self._check_tensor(value, argument)
                shapes.append((value.shape, value.stride()) if self._by_strides else value.shape)
            elif argument.kind == "number":
                if isinstance(value, bool) or not isinstance(value, int):
                    raise self._wrong(f"{argument.name} is {value!r} where an integer was compiled")
                shapes.append(value)
            elif not _same(value, argument.value):
                raise self._wrong(
                    f"{argument.name} is {_shown(value)} where {argument.value!r} was compiled",
                    "make a package with that value, or mark it dynamic",
                )
        key = tuple(shapes)
        if self._known is None or self._known[0] != key:
            self._known = key, self._symbols(leaves)
        return self._known[1]

    def layout(self, argument: Argument, symbols: Mapping[str, int]) -> tuple[int, ...]:
        """The strides that an argument was compiled for."""
        return tuple(size_value(stride, symbols) for stride in argument.stride)

    def _check_tensor(self, value: Any, argument: Argument) -> None:
        if not isinstance(value, torch.Tensor):
            raise self._wrong(f"{argument.name} is {_shown(value)} where a tensor was compiled")
        if str(value.dtype) != f"torch.{argument.dtype}" or value.device.type != argument.device:
            raise self._wrong(
                f"{argument.name} is {value.dtype} on {value.device.type} where torch.{argument.dtype} on"
                f" {argument.device} was compiled"
            )
        if value.layout != torch.strided or len(value.shape) != len(argument.size):
            raise self._wrong(
                f"{argument.name} has size {tuple(value.shape)} where {_sizes(argument)} was compiled"
            )
        if value.requires_grad and torch.is_grad_enabled():
            raise self._wrong(
                f"{argument.name} needs a gradient, and packages compute none",
                "call it under torch.no_grad(), or detach the argument",
            )

    def _symbols(self, leaves: Sequence[Any]) -> Mapping[str, int]:
        """The values of symbols, which must be in their ranges, and all sizes must follow from them."""
        rows = [
            (argument, dim, size, value.shape[dim] if argument.kind == "tensor" else value)
            for value, argument in zip(leaves, self._entry.arguments, strict=True)
            if argument.kind != "fixed"
            for dim, size in enumerate(argument.size)
        ]
        found: dict[str, int] = {}
        strides = self._strides(leaves) if self._by_strides else []
        for measured in (rows, strides):
            for _, _, size, given in measured:
                if isinstance(size, str) and size.isidentifier():
                    found.setdefault(size, int(given))
            for _, _, size, given in measured:
                if isinstance(size, str):
                    self._solve(size, int(given), found)
        for argument, dim, size, given in rows:
            if given != size_value(size, found):
                where = f"size {dim} of {argument.name}" if argument.kind == "tensor" else argument.name
                raise self._wrong(
                    f"{where} is {given} where {_said(size, found)} was compiled",
                    "call it with such sizes, or make a package in which this one is dynamic",
                )
        for name, symbol in self._entry.symbols.items():
            value = found.get(name)
            low, high = symbol.lower or 0, math.inf if symbol.upper is None else symbol.upper
            if value is not None and not low <= value <= high:
                measures = (("size", rows), ("stride", strides))
                where = next(
                    f"{what} {dim} of {argument.name}"
                    for what, measured in measures
                    for argument, dim, size, _ in measured
                    if name in size_names(size)
                )
                raise self._wrong(
                    f"{where} makes {name} {value}, which is not in its range {low}..{high}",
                    "call it with a size in the range, or make a package with a wider one",
                )
        for text in self._entry.conditions:
            if not condition_holds(text, found):
                values = ", ".join(f"{name} = {value}" for name, value in sorted(found.items()))
                what = "sizes and strides" if self._by_strides else "sizes"
                raise self._wrong(f"it was compiled for {what} of which {text}, and {values}")
        return found

    def _strides(self, leaves: Sequence[Any]) -> list[tuple[Argument, int, Size, int]]:
        """The strides that arguments have, beside those that were compiled; a size of 1 has any."""
        return [
            (argument, dim, stride, value.stride(dim))
            for value, argument in zip(leaves, self._entry.arguments, strict=True)
            if argument.kind == "tensor"
            for dim, stride in enumerate(argument.stride)
        ]

    def _solve(self, text: str, given: int, found: dict[str, int]) -> None:
        """Find the one unknown symbol of a linear expression."""
        unknown = [name for name in size_names(text) if name not in found]
        if len(unknown) != 1:
            return
        name = unknown[0]
        zero, one, two = (size_value(text, {**found, name: n}) for n in (0, 1, 2))
        factor = one - zero
        if factor and two - one == factor and (given - zero) % factor == 0:
            found[name] = (given - zero) // factor

    def _wrong(self, cause: str, fix: str = "call it as it was when the package was made") -> PackageError:
        return PackageError(f"{self._name}: {cause}", fix)


def nesting(text: str) -> Any:
    """How arguments or results are nested, from its text.

    Raises:
        PackageError: a container in it has not been registered here, or the text cannot be read.
    """
    try:
        return pytree.spec_of_text(text)
    except (NotImplementedError, ImportError, AttributeError) as error:
        # the first is what torch raises for a type of container that it does not know
        raise PackageError(
            f"arguments or results are nested in a container that nothing has registered ({error})",
            "import its module before loading, or name that in modules= when the package is made",
        ) from error
    except Exception as error:
        raise PackageError(
            f"how arguments or results are nested cannot be read ({type(error).__name__})",
            "make the package again",
        ) from error


def _said(size: Size, symbols: Mapping[str, int]) -> str:
    if isinstance(size, int):
        return str(size)
    known = [f"{name} = {symbols[name]}" for name in size_names(size) if name in symbols]
    return f"{size} ({', '.join(known)})" if known else size


def _sizes(argument: Argument) -> str:
    return f"({', '.join(map(str, argument.size))}{',' if len(argument.size) == 1 else ''})"


def _same(value: object, compiled: object) -> bool:
    if type(value) is not type(compiled):
        return False
    if isinstance(value, float) and math.isnan(value):
        return isinstance(compiled, float) and math.isnan(compiled)
    return value == compiled


def _shown(value: object) -> str:
    return f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else repr(value)
