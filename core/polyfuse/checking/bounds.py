"""Error bounds: how far a correct kernel may differ from the interpreter, element by element.

The kernel is interpreted with a bound beside every value: how far the same value may be in a right kernel
that rounds elsewhere, adds up in another order or calls another library's functions. An operation passes on
the bounds of its operands, as it does with the values themselves, and adds what the table of operations
allows (`ir/ops.py`); a reduction adds what another order of its terms may change. A rounding to fewer bits
passes a bound on only where it may turn out differently, so that an exact chain of operations stays exact.

This is the running error analysis of Wilkinson, done on the kernel's own statements and on the real numbers:
a sum that cancels has a wide bound where it cancels, and none elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyfuse.checking import reductions
from polyfuse.checking.compare import ZERO, apart, of_unknown_sign, spread
from polyfuse.ir.interpreter import semantics
from polyfuse.ir.interpreter.evaluator import PointStatement, type_of
from polyfuse.ir.interpreter.kernel import KernelEvaluator
from polyfuse.ir.interpreter.space import Space
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.ops import SCALAR_OPS, combining_op
from polyfuse.ir.rounding import COARSE, QUICK, coarse_values, stores_halves
from polyfuse.ir.statements import Cast, Compute, Load, Random, Store

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "shift_left", "shift_right")
# Near their zeros, which are not numbers of the type, these are only as exact as their arguments.
_EXTREMES = ("minimum", "maximum", "fmin", "fmax")
_NEAR_ZERO = ("lgamma", "digamma", "erfinv", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "pow")
# These round nothing.
_EXACT = frozenset(
    ("where", "neg", "abs", "copysign", "sign", "floor", "ceil", "trunc", "round", "minimum", "maximum")
    + ("fmin", "fmax", "nextafter", "remainder", "fmod")
)
# Normal random numbers are made with a logarithm, a root and a cosine.
_NORMAL = 1e-5


class Bounded(NamedTuple):
    """A value, and how far it may be off in a right kernel: infinitely where it may be anything, and None
    where it is exact everywhere.
    """

    value: Tensor
    error: Tensor | None


class Ledger:
    """What is known of the elements of buffers, shared by the parts of one run.

    Attributes:
        errors: bounds, by the name of an argument; arguments that share memory share them.
        written: which elements were stored.
        counts, sums: how many values each element was combined with, and of which size they were.
        touched: names that have a bound other than zero.
    """

    def __init__(self, errors: Mapping[str, Tensor], written: Mapping[str, Tensor]) -> None:
        self.errors = errors
        self.written = written
        self.counts: dict[str, Tensor] = {}
        self.sums: dict[str, Tensor] = {}
        self.touched: set[str] = set()

    def combined(self, name: str, storage: Tensor, index: Tensor, value: Tensor) -> None:
        """Count what is combined with elements, and how large it is."""
        if name not in self.counts:
            self.counts[name] = torch.zeros(storage.numel(), dtype=torch.float64, device=storage.device)
            self.sums[name] = storage.double().abs().nan_to_num(0.0, 0.0)
        self.counts[name].index_add_(0, index, torch.ones_like(index, dtype=torch.float64))
        self.sums[name].index_add_(0, index, value.double().abs().nan_to_num(0.0, 0.0))

    def close(self, storages: Mapping[str, Tensor]) -> None:
        """Add to the bounds what the order of atomic operations may change."""
        for name, count in self.counts.items():
            dtype = storages[name].dtype
            if not dtype.is_floating_point:
                continue
            # a kernel may round after each of them, and so does the interpreter where the type is wide
            size = torch.maximum(self.sums[name], storages[name].double().abs().nan_to_num(0.0, 0.0))
            size = size + ZERO / torch.finfo(dtype).eps
            steps = torch.where(
                count > 1, 2 * count, count if dtype.itemsize > 2 else torch.zeros_like(count)
            )
            self.errors[name].add_(steps * torch.finfo(dtype).eps * size)


class BoundedEvaluator(KernelEvaluator):
    """Evaluates statements to values with bounds."""

    def __init__(
        self,
        ledger: Ledger,
        kernel: Kernel,
        space: Space,
        sizes: Mapping[str, int],
        storages: Mapping[str, Tensor],
        points: Tensor,
        lengths: Mapping[str, int],
    ) -> None:
        super().__init__(space, sizes, storages, points, lengths)
        self._ledger = ledger
        self._fast = kernel.numerics != "eager"
        self._in_order = kernel.deterministic
        self._coarse = coarse_values(kernel)
        self._halves = self._fast and stores_halves(kernel)
        self._locals: dict[str, Tensor] = {}

    def value(self, stmt: PointStatement, known: Mapping[str, Any]) -> Any:
        """What a statement defines, at each point, with its bound."""
        if isinstance(stmt, Load):
            return self.load(stmt, known)
        values = {name: known[name].value for name in stmt.args}
        found = super().value(stmt, values)
        error: Tensor | None = None
        match stmt:
            case Compute(op=op, args=args):
                error = self._scalar(op, tuple(known[a] for a in args), found)
                own = self._of_short_form(stmt.target, op, found)
                if own is not None:
                    error = own if error is None else error + own
            case Cast(arg=arg, bitwise=True):
                error = known[arg].error
                error = None if error is None else torch.where(error > 0, torch.inf, 0.0)
            case Cast(arg=arg, dtype=dtype) if known[arg].error is not None:
                error = _moved(lambda x: semantics.cast(x, dtype), known[arg], found)
            case Random(kind="normal"):
                error = torch.full_like(found, _NORMAL) * (1 + found.abs())
        return Bounded(found, error)

    def _of_short_form(self, name: str, op: str, found: Tensor) -> Tensor | None:
        """How far a form may be off that is exact enough for 16 bits; None where there is none."""
        size = found.double().abs()
        if name in self._coarse:
            return COARSE[op] * torch.minimum(size, 1 - size)
        if self._halves and op in QUICK and found.dtype is torch.float32:
            return QUICK[op] * torch.where(found.isfinite(), size, 0.0)
        return None

    def _scalar(self, op: str, args: tuple[Bounded, ...], found: Tensor) -> Tensor | None:
        error: Tensor | None
        values = tuple(a.value for a in args)
        if op == "where":
            error = _selected(args)
        elif op in _COMPARISONS:
            return _compared(args)
        elif op in _BITS or found.dtype is torch.bool:
            return _unknown([a.error for a in args])
        else:
            error = None
            for i, arg in enumerate(args):
                if arg.error is not None:
                    moved = _moved(partial(_with_operand, op, values, i), arg, found)
                    error = moved if error is None else error + moved
        if op in _EXTREMES and found.dtype.is_floating_point:
            # of two zeros, either may be the smaller one
            either = (values[0] == 0) & (values[1] == 0) & (values[0].signbit() != values[1].signbit())
            if bool(either.any()):
                error = torch.where(either, ZERO, 0.0 if error is None else error)
        if not found.dtype.is_floating_point or op in _EXACT:
            return error
        ulp = SCALAR_OPS[op].ulp
        steps = ulp + 1 if ulp or self._fast else 0
        if steps:
            info = torch.finfo(found.dtype)
            own = steps * info.eps * found.abs().nan_to_num(0.0, 0.0) + info.tiny
            if op in _NEAR_ZERO:
                own = own + 4 * info.eps
            elif bool((zero := found == 0).any()):
                own = torch.where(zero & _of_zeros(op, values), 0.0, own)
            own = torch.where(found.isfinite(), own, 0.0)
            error = own if error is None else error + own
        return error

    def load(self, stmt: Load, known: Mapping[str, Any]) -> Any:
        """Elements of a buffer, with their bounds."""
        values = {name: known[name].value for name in stmt.args}
        found = super().load(stmt, values)
        doubts = [known[name].error for name in stmt.indirect]
        errors = self._errors_of(stmt.buffer)
        error: Tensor | None = None
        if errors is not None:
            position = self.index(stmt.index, tuple(values[name] for name in stmt.indirect))
            if stmt.mask is None:
                error = errors[self.storage_index(stmt.buffer, position)]
            else:
                position, mask = torch.broadcast_tensors(position, values[stmt.mask])
                if mask.any():
                    position = torch.where(mask, position, position[mask][0])
                    error = torch.where(mask, errors[self.storage_index(stmt.buffer, position)], 0.0)
        if stmt.mask is not None and stmt.other is not None:
            doubts.append(known[stmt.mask].error)
            other = known[stmt.other].error
            if other is not None:
                error = torch.where(values[stmt.mask], 0.0 if error is None else error, other)
        unknown = _unknown(doubts)
        if unknown is not None:
            error = unknown if error is None else error + unknown
        return Bounded(found, error)

    def _errors_of(self, name: str) -> Tensor | None:
        if name in self._ledger.errors:
            return self._ledger.errors[name] if name in self._ledger.touched else None
        return self._locals.get(name)

    def store(self, stmt: Store, known: Mapping[str, Any], looped: bool = False) -> None:
        """Store values and bounds."""
        buffer, mode = stmt.buffer, stmt.mode
        storage = self._storage(buffer, stmt.dtype)
        shape = self.space.shape(looped)
        position = self.index(stmt.index, tuple(known[i].value for i in stmt.indirect)).expand(shape)
        value = known[stmt.value].value.expand(shape)
        error = known[stmt.value].error
        error = None if error is None else error.expand(shape).reshape(-1)
        inside: Tensor | None = None
        if stmt.mask is not None:
            mask = known[stmt.mask].value.expand(shape)
            if not mask.any():
                position = position.reshape(-1)[:0]
            else:
                position = torch.where(mask, position, position[mask][0])
            inside = mask.reshape(-1)
        doubt = _unknown([known[name].error for name in stmt.args[1:]])
        if doubt is not None and bool((doubt > 0).any()):
            # it is not sure which elements are stored: nothing is known of any
            self._error_storage(buffer, storage).fill_(torch.inf)
        if position.numel() == 0 and inside is not None:
            return
        index = self.storage_index(buffer, position).expand(shape).reshape(-1)
        flat = value.reshape(-1)
        if inside is not None:
            index, flat = index[inside], semantics.gather(flat, inside)
            error = None if error is None else error[inside]
        self._note(buffer, storage, index, flat, error, mode, bool(stmt.indirect))
        semantics.scatter(storage, index, flat, mode)

    def _note(
        self,
        name: str,
        storage: Tensor,
        index: Tensor,
        value: Tensor,
        error: Tensor | None,
        mode: str,
        indirect: bool,
    ) -> None:
        written = self._ledger.written.get(name)
        if mode == "set":
            again = None
            if written is not None and indirect and not self._in_order:
                again = _repeated(written, index)
            if error is not None or self._errors_of(name) is not None:
                self._error_storage(name, storage)[index] = 0.0 if error is None else error.to(torch.float64)
            if again is not None:
                self._error_storage(name, storage)[again] = torch.inf
        else:
            if combining_op(mode) in ("add", "mul"):
                self._ledger.combined(name, storage, index, value)
            errors = self._error_storage(name, storage)
            if error is not None:
                errors.index_add_(0, index, error.double())
        if written is not None:
            written[index] = True

    def _error_storage(self, name: str, storage: Tensor) -> Tensor:
        if name in self._ledger.errors:
            self._ledger.touched.update(n for n in self._ledger.errors)
            return self._ledger.errors[name]
        if name not in self._locals:
            self._locals[name] = torch.zeros(storage.numel(), dtype=torch.float64, device=storage.device)
        return self._locals[name]

    def reduce(self, kind: str, args: Any) -> Any:
        """A reduction over all reduction axes."""
        return self._rows(kind, args, semantics.reduce, reductions.reduced, self.space.shape(False))

    def scan(self, kind: str, args: Any) -> Any:
        """A scan along the one reduction axis."""
        return self._rows(kind, args, semantics.scan, reductions.scanned, self.space.lengths)

    def _rows(
        self,
        kind: str,
        args: tuple[Bounded, ...],
        run: Callable[..., Any],
        bound: Callable[..., Any],
        shape: tuple[int, ...],
    ) -> tuple[Bounded, ...]:
        values = tuple(self.row(a.value) for a in args)
        errors = tuple(None if a.error is None else self.row(a.error) for a in args)
        found = run(kind, values, type_of(args[0].value))
        bounds = bound(kind, values, errors, found)
        return tuple(
            Bounded(f.reshape(shape), None if b is None else b.reshape(shape))
            for f, b in zip(found, bounds, strict=True)
        )


def _with_operand(op: str, values: tuple[Tensor, ...], number: int, value: Tensor) -> Tensor:
    """An operation with one of its operands replaced."""
    return semantics.scalar(op, (*values[:number], value, *values[number + 1 :]), type_of(values[-1]))


def _of_zeros(op: str, values: tuple[Tensor, ...]) -> Tensor | bool:
    """Where a result that is zero is so exactly, and not for being smaller than all numbers of its type: sums
    are exact where they are that small, and other operations where an operand is a zero or infinite.
    """
    if op in ("add", "sub"):
        return True
    plain = [(v == 0) | v.isinf() for v in values]
    return reduce(torch.logical_or, plain)


def _moved(function: Callable[[Tensor], Tensor], arg: Bounded, found: Tensor) -> Tensor:
    """How far a result moves when an operand moves as far as it may."""
    assert arg.error is not None
    low, high = spread(arg.value, arg.error)
    moved = torch.maximum(apart(function(low), found), apart(function(high), found))
    if found.dtype.is_floating_point and arg.value.dtype.is_floating_point:
        # as small a bound may be lost in a type that does not reach so far down
        moved = torch.where((found == 0) & of_unknown_sign(arg.value, arg.error), moved + ZERO, moved)
    return torch.where(arg.error == torch.inf, torch.inf, moved)


def _compared(args: tuple[Bounded, ...]) -> Tensor | None:
    errors = [a.error for a in args if a.error is not None]
    if not errors:
        return None
    reach = sum(errors[1:], errors[0])
    gap = (args[0].value.double() - args[-1].value.double()).abs()
    return torch.where((reach > 0) & ~(gap > reach) & ~gap.isnan() | (reach == torch.inf), torch.inf, 0.0)


def _selected(args: tuple[Bounded, ...]) -> Tensor | None:
    condition, first, second = args
    error = None
    if first.error is not None or second.error is not None:
        error = torch.where(
            condition.value,
            0.0 if first.error is None else first.error,
            0.0 if second.error is None else second.error,
        )
    if condition.error is not None:
        either = apart(first.value, second.value)
        for arg in (first, second):
            either = either if arg.error is None else either + arg.error
        error = torch.where(condition.error > 0, either, 0.0 if error is None else error)
    return error


def _unknown(errors: list[Tensor | None]) -> Tensor | None:
    known = [e for e in errors if e is not None]
    if not known:
        return None
    return torch.where(sum(known[1:], known[0]) > 0, torch.inf, 0.0)


def _repeated(written: Tensor, index: Tensor) -> Tensor | None:
    """Elements that several points store: which of them is the last one is not defined."""
    again = [index[written[index]]]
    found, counts = index.unique(return_counts=True)
    again.append(found[counts > 1])
    both = torch.cat(again)
    return both if both.numel() else None
