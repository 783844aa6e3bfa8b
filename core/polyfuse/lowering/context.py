"""`LoweringContext`: the graph under construction and all that lowerings share. Passed explicitly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.ir.expr import Expr, const, loads
from polyfuse.ir.nodes import Buffer, ExternCall, Node, Opaque, Origin, Pointwise, View
from polyfuse.ir.types import DType, from_torch
from polyfuse.lowering.elements.numbers import size_number
from polyfuse.lowering.indexing.index_checks import Checks
from polyfuse.lowering.report import LoweringReport
from polyfuse.lowering.shapes.layout import memory_order, storage_layout
from polyfuse.lowering.sizes import SizeTable
from polyfuse.lowering.storing import Costs, Limits
from polyfuse.lowering.value import TensorValue, axes_of
from polyfuse.plugin.target_info import TargetInfo
from polyfuse.rewrite import cast, is_held, round_half, scalar
from polyfuse.runtime.devices.registry import device_of
from polyfuse.symbolic import Index, IndexLike, contiguous_strides, product, storage_size


@dataclass
class Readers:
    """Who reads a traced value, seen through views: how many passes over it, why it has to be stored, if so,
    at how many points all of them compute it again where they broadcast it, whether one of them does so
    across its memory, for how many neighbouring points each of them, at least, reads one number of it, and
    whether it is compared with what was selected of it, so that all of them have to read the same bits."""

    passes: int = 0
    stored: str = ""
    recomputed: int = 0
    across: bool = False
    run: int = 0
    compared: bool = False

    def add_run(self, points: int) -> None:
        """Count one more reader."""
        self.run = min(self.run or points, points)


class LoweringContext:
    """Buffers and nodes made so far, and the values of traced nodes.

    Attributes:
        settings: the options.
        sizes: symbolic sizes.
        buffers, nodes, objects: of the graph under construction.
        report: what was done.
        origins: where nodes made now come from.
        env: traced node to value.
        input_nodes: the placeholder of each input, by the input's name.
        last_use: traced node to the position of its last reader.
        readers: traced node to who reads it.
        position: position of the traced node in work.
        bound_symbols: unbacked shape symbols that some call defines; only ever asked for membership.
        target_info: of a device, as the backend that will most likely serve it uses it.
        checks: of indices that data give.
        costs: what expressions take, and whether values made of them are better stored.
        eager_rounding: whether half-precision intermediates are rounded as eager mode rounds them.
        packaged: whether the program goes into a package.
    """

    def __init__(self, settings: Settings, shape_env: Any, report: LoweringReport) -> None:
        self.settings = settings
        self.sizes = SizeTable(shape_env)
        self.buffers: dict[str, Buffer] = {}
        self.nodes: list[Node] = []
        self.objects: dict[str, Any] = {}
        self.report = report
        self.origins: tuple[Origin, ...] = ()
        self.env: dict[Any, Any] = {}
        self.input_nodes: dict[str, Any] = {}
        self.last_use: dict[Any, int] = {}
        self.position = 0
        self.target_info: Callable[[str], TargetInfo] = lambda device: TargetInfo()
        self.eager_rounding = settings.numerics == "eager"
        self.packaged = False
        self.readers: dict[Any, Readers] = {}
        self.bound_symbols: set[str] = set()
        self.checks = Checks(settings.index_asserts)
        self.costs = Costs()
        self._counts: dict[str, int] = {}
        self._reads: dict[Expr, tuple[str, ...]] = {}
        self._called: set[str] = set()
        self._examined = 0
        self._unstored: list[tuple[Any, TensorValue]] = []
        self._moved: dict[tuple[str, str], TensorValue] = {}

    # Names, buffers, nodes.

    def fresh(self, prefix: str) -> str:
        """The next name with this prefix that no buffer or object has."""
        while True:
            count = self._counts.get(prefix, 0)
            self._counts[prefix] = count + 1
            name = f"{prefix}{count}"
            if name not in self.buffers and name not in self.objects:
                return name

    def numbers(self) -> dict[str, int]:
        """The number of the next name, by prefix."""
        return dict(self._counts)

    def leave_out(self, numbers: Mapping[str, int]) -> None:
        """Let so many numbers of each prefix go unused."""
        for prefix, count in numbers.items():
            self._counts[prefix] += count

    def add_buffer(
        self,
        dtype: DType | None,
        torch_dtype: torch.dtype,
        device: str,
        size: tuple[IndexLike, ...],
        stride: tuple[IndexLike, ...],
        kind: str = "temp",
        name: str = "",
    ) -> Buffer:
        """A new buffer."""
        buffer = Buffer(name or self.fresh("buf"), dtype, device, size, stride, dtype_text(torch_dtype), kind)
        self.buffers[buffer.name] = buffer
        return buffer

    def emit(self, node: Node) -> None:
        """Append a node to the graph."""
        self.nodes.append(node)
        if isinstance(node, ExternCall):
            self._called.update(node.writes())

    # Values.

    def template(self, fake: torch.Tensor) -> TensorValue:
        """A value with the metadata of a traced tensor and no content yet."""
        if fake.layout is not torch.strided or type(fake).__name__ not in _PLAIN_TENSORS:
            return TensorValue(None, fake.dtype, str(fake.device), self.sizes.sizes(fake.shape), ())
        stride = tuple([s if type(s) is int else self.sizes.stride(s) for s in fake.stride()])
        # what is negated only when it is read has other numbers in memory
        eager = fake.is_quantized or fake.is_neg()
        return TensorValue(
            None if eager else from_torch(fake.dtype),
            fake.dtype,
            str(fake.device),
            self.sizes.sizes(fake.shape),
            stride,
            self.sizes.index(fake.storage_offset()),
        )

    def lazy(self, like: torch.Tensor | TensorValue, body: Expr) -> TensorValue:
        """A value given by the element at ``i0, i1, ...``, which is converted to the type it is computed
        in."""
        value = self.template(like) if isinstance(like, torch.Tensor) else like
        value.body = cast(self.rounded(body, value.kernel_type), value.kernel_type.compute)
        value.origins = self.origins
        return value

    def temporary(self, dtype: DType, device: str, size: Sequence[IndexLike]) -> TensorValue:
        """A value of this compiler's own making, laid out row-major, with no content yet."""
        whole = tuple(size)
        return TensorValue(dtype, dtype.torch, device, whole, contiguous_strides(whole))

    def stored(
        self, like: torch.Tensor | TensorValue, stride: tuple[IndexLike, ...] | None = None
    ) -> TensorValue:
        """A value in a new buffer that some node must write; laid out as traced where that is dense, unless
        strides are given."""
        value = self.template(like) if isinstance(like, torch.Tensor) else like
        if stride is None:
            stride = storage_layout(value.size, value.stride, self.sizes)
        buffer = self.add_buffer(value.dtype, value.torch_dtype, value.device, value.size, stride)
        value.set_view(buffer.view())
        return value

    def rounded(self, body: Expr, dtype: DType) -> Expr:
        """`body` as eager mode stores it between two operators: rounded to half precision if that is asked
        for. Eight bits are always rounded to: who stores so few wants the values that they have."""
        if dtype is dtype.compute:
            return body
        if body.op == "const":
            return const(round_half(float(body.value), dtype), body.dtype) if body.dtype.is_float else body
        if self.eager_rounding or dtype.is_eight_bit_float:
            return cast(cast(body, dtype), dtype.compute)
        return body

    def operand(
        self,
        value: Any,
        axes: Sequence[IndexLike],
        dtype: DType,
        device: str,
        through: DType | None = None,
    ) -> Expr:
        """What an operator reads of an operand at `axes`, converted to `dtype`: tensors broadcast, numbers
        repeat. With `through`, an operand is first rounded to that type, as eager mode does by storing it."""
        narrow = through is not None and through is not through.compute
        if isinstance(value, TensorValue):
            element = self.local(value, device).expand_to(axes)
            narrow = narrow and through is not None and not is_held(element, through)
        elif isinstance(value, (bool, int, float)):
            return (
                const(round_half(float(value), through), dtype)
                if narrow and through
                else scalar(value, dtype)
            )
        elif isinstance(value, Index):
            element = size_number(value)
        else:
            raise UnsupportedError(f"an operand of type {type(value).__name__} has no scalar form")
        return cast(cast(element, through) if narrow and through else element, dtype)

    def local(self, value: TensorValue, device: str) -> TensorValue:
        """`value` where kernels of `device` can read it: single numbers are copied over, as eager mode
        does."""
        dtype = value.kernel_type
        if value.device == device or (value.body is not None and not loads(value.body)):
            return value
        if value.size:
            raise UnsupportedError(f"operands on {value.device} and {device} do not meet in one kernel")
        view = self.realize(value)
        key = (view.buffer, device)
        if key not in self._moved:
            self._moved[key] = self._copy_to_device(value, dtype, view, device)
        return self._moved[key]

    def _copy_to_device(self, value: TensorValue, dtype: DType, view: View, device: str) -> TensorValue:
        """A single number on another device."""
        result = self.temporary(dtype, device, value.size)
        result.torch_dtype = value.torch_dtype
        buffer = self.add_buffer(dtype, value.torch_dtype, device, result.size, result.stride)
        where = ("device", Opaque(text=f"torch.device({device!r})"))
        if device_of(value.device).is_host:
            # read now and passed by value, as eager mode does: a copy would wait for the device
            number = self.add_buffer(None, value.torch_dtype, "cpu", (), (), "object")
            self._call("aten._local_scalar_dense.default", (view,), (), number.name)
            kind = ("dtype", Opaque(text=str(value.torch_dtype)))
            self._call("aten.full.default", ((), number.view()), (kind, where), buffer.name)
        else:
            self._call("aten._to_copy.default", (view,), (where,), buffer.name)
        result.set_view(buffer.view())
        return result

    def _call(self, op: str, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...], result: str) -> None:
        self.emit(ExternCall(self.fresh("call"), op, args, kwargs, (result,), origins=self.origins))

    # Realising.

    def realize(self, value: TensorValue, reason: str = "read by a call") -> View:
        """Store a lazy value, with the traced strides where they are dense. Nothing happens to a stored
        one."""
        if value.view is not None:
            return value.view
        stride = storage_layout(value.size, value.stride, self.sizes)
        buffer = self.add_buffer(value.kernel_type, value.torch_dtype, value.device, value.size, stride)
        self.report.realized[buffer.name] = reason
        view = buffer.view()
        self.write(value, view)
        value.set_view(view)
        return view

    def write(self, value: TensorValue, target: View) -> None:
        """A node that puts every element of `value` into `target`."""
        assert value.dtype is not None
        axes = axes_of(value.size)
        index: IndexLike = target.offset
        for position, stride in zip(axes, target.stride, strict=True):
            index = index + position * stride
        order = memory_order(target.size, target.stride, self.sizes)
        loops = tuple(a for a in (axes[d] for d in order) if isinstance(a, Index))
        element = self.buffers[target.buffer].dtype or value.dtype
        body = cast(value.at(axes), element)
        origins = value.origins or self.origins
        self.emit(Pointwise(self.fresh("op"), loops, (), target.buffer, index, body, origins=origins))

    def realize_exact(self, value: TensorValue, reason: str = "read by a call") -> View:
        """Store a value with exactly the traced strides, repeated elements (stride zero) and gaps
        included."""
        if value.faithful:
            assert value.view is not None
            return value.view
        if value.view is None and storage_layout(value.size, value.stride, self.sizes) == value.stride:
            return self.realize(value, reason)
        repeated = [s == 0 and n not in (0, 1) for n, s in zip(value.size, value.stride, strict=True)]
        size = tuple(1 if r else n for n, r in zip(value.size, repeated, strict=True))
        single = TensorValue(value.dtype, value.torch_dtype, value.device, size, value.stride)
        extent = (storage_size(size, value.stride),)
        buffer = self.add_buffer(value.kernel_type, value.torch_dtype, value.device, extent, (1,))
        self.report.realized[buffer.name] = reason + ", with its traced strides"
        single.body = value.at([0 if r else a for a, r in zip(axes_of(value.size), repeated, strict=True)])
        single.origins = value.origins
        self.write(single, View(buffer.name, size, value.stride))
        view = View(buffer.name, value.size, value.stride)
        value.set_view(view)
        return view

    def store_if_better(
        self,
        value: TensorValue,
        readers: int,
        recomputed: int = 0,
        across: bool = False,
        meet: Callable[[], bool] | None = None,
    ) -> TensorValue:
        """Store `value` if that is better for so many readers, which compute it again at so many points.
        `meet` says whether its readers are for one value.
        """
        if value.body is not None:
            allowed = self.target_info(value.device).recomputed_points
            limits = Limits(self.settings.max_inlined_ops, self.settings.max_inlined_reads, allowed)
            reason = self.costs.reason_to_store(value, limits, readers, recomputed, across, meet)
            if reason:
                self.realize(value, reason)
        return value

    def before_write(self, buffer: str) -> None:
        """Store every lazy value that is still needed and reads `buffer`, whose content is about to
        change."""
        self.checks.forget(buffer)
        for node, result in islice(self.env.items(), self._examined, None):
            self._unstored.extend((node, value) for value in tensors_in(result) if value.body is not None)
        self._examined = len(self.env)
        unstored: list[tuple[Any, TensorValue]] = []
        for node, value in self._unstored:
            if value.body is None or self.last_use.get(node, -1) < self.position:
                continue
            if buffer in self._read_by(value.body):
                self.realize(value, "reads what is overwritten later")
            else:
                unstored.append((node, value))
        self._unstored = unstored

    def results_of_calls(self, value: TensorValue) -> int:
        """Bytes of the results of calls, each as large as a lazy value, that it is made of, if these are more
        than two; else 0.
        """
        if value.body is None or value.dtype is None:
            return 0
        size = product(value.size)
        found = [b for b in self._read_by(value.body) if b in self._called and self.buffers[b].numel == size]
        return len(found) * size * value.dtype.itemsize if len(found) > 2 and isinstance(size, int) else 0

    def _read_by(self, body: Expr) -> tuple[str, ...]:
        """The buffers that a body reads."""
        found = self._reads.get(body)
        if found is None:
            found = self._reads[body] = tuple(dict.fromkeys(e.buffer for e in loads(body)))
        return found

    def is_read_once(self, node: Any) -> bool:
        """Whether what a traced node makes is read once, by something that does not need it stored."""
        readers = self.readers[node]
        return readers.passes <= 1 and not readers.stored


_PLAIN_TENSORS = ("Tensor", "FakeTensor", "Parameter", "Buffer", "FunctionalTensor")


def tensors_in(value: Any) -> Iterator[TensorValue]:
    """Every tensor value in a result or argument."""
    if isinstance(value, TensorValue):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def origins_of(values: Iterable[TensorValue], own: Origin) -> tuple[Origin, ...]:
    """Origins of what is made from `values` now: those inlined, then `own`."""
    merged: dict[Origin, None] = {}
    for value in values:
        for origin in value.origins:
            merged[origin] = None
    merged[own] = None
    return tuple(merged)


def dtype_text(dtype: torch.dtype) -> str:
    """A torch dtype without its prefix."""
    return str(dtype).removeprefix("torch.")
