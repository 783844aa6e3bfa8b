"""How a plugin expresses an operator in the representation: what the hook `polyfuse_lowerings` returns, and
what such a function is given to work with.

A lowering is a function ``function(ctx, node, *args, **kwargs)``. `ctx` is a `LoweringContext`; `node` is the
traced call, whose ``node.meta["val"]`` holds the results' sizes, types and layouts as fake tensors; the other
arguments are those of the operator, with a `TensorValue` for each tensor and an index of `polyfuse.symbolic`
for each symbolic size. It returns a `TensorValue` for each result, and raises
`UnsupportedError` for what it cannot do: the next lowering of the operator is then tried, and the eager
operator in the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch.fx import Node as TracedNode

    from polyfuse.base.settings import Settings
    from polyfuse.ir.expr import Expr
    from polyfuse.ir.nodes import Node, View
    from polyfuse.ir.types import DType
    from polyfuse.symbolic import IndexLike


@dataclass(frozen=True)
class Lowering:
    """The lowering of one operator. A function alone is taken as `Lowering(function)`.

    Attributes:
        function: ``function(ctx, node, *args, **kwargs)``; arguments are values in place of traced nodes. It
            returns a `TensorValue`, a tuple of them (None for a result nobody reads), or raises
            `UnsupportedError`.
        view: its result is another look at its first argument, so its readers are that argument's readers.
        library: it becomes a call of an eager operator by choice: tensor arguments must be stored.
        passes: how often it reads each element of its arguments.
        elementwise: each element of its result follows from that of its first argument, in whose order the
            result lies; so that layouts may be chosen around an operator that is not torch's.
        stores: positions of tensor arguments it reads at many or data-dependent indices: stored before it.
        takes: ``takes(settings, node)``: whether it computes a traced call, as far as that is known before
            the graph is lowered; None: any. Rewrites that spell an operator out leave such calls alone.
    """

    function: Callable[..., Any]
    view: bool = False
    library: bool = False
    passes: int = 1
    stores: tuple[int, ...] = ()
    elementwise: bool = False
    takes: Callable[[Settings, TracedNode], bool] | None = None


class TensorValue(Protocol):
    """A tensor of the traced graph: stored in a buffer, or still an expression of the coordinates in it.

    `dtype` is None for what kernels do not compute in, such as complex numbers; `size` is in elements, a
    number or an index for each dimension. Values are made by a `LoweringContext`.
    """

    dtype: DType | None
    torch_dtype: torch.dtype
    device: str
    size: tuple[IndexLike, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""

    def at(self, indices: Sequence[IndexLike]) -> Expr:
        """The element at `indices`, in the type that `dtype` is computed in."""

    def expand_to(self, axes: Sequence[IndexLike]) -> Expr:
        """The element that broadcasting puts at `axes` of a tensor of equal or higher rank."""


class LoweringContext(Protocol):
    """The interface between a lowering and the graph. Expressions are built with `polyfuse.ir.expr`, and are
    simplified afterwards.

    Attributes:
        settings: the options.
        packaged: whether the program goes into a package, which of what `add_object` adds holds tensors and
            each `polyfuse.plugin.PackableKernel`.
    """

    settings: Settings
    packaged: bool

    def template(self, fake: torch.Tensor) -> TensorValue:
        """A value with the sizes, type and layout of a traced result, and no content yet."""

    def temporary(self, dtype: DType, device: str, size: Sequence[IndexLike]) -> TensorValue:
        """A value of the lowering's own, laid out row-major, with no content yet."""

    def axes(self, value: TensorValue) -> tuple[IndexLike, ...]:
        """The index variables of an expression that is a value's content: one for each dimension, 0 where
        the size is one.
        """

    def lazy(self, like: torch.Tensor | TensorValue, body: Expr) -> TensorValue:
        """A value given by its element at its `axes`; nothing is stored until it must be."""

    def operand(
        self,
        value: Any,
        axes: Sequence[IndexLike],
        dtype: DType,
        device: str,
        through: DType | None = None,
    ) -> Expr:
        """What is read of an operand at `axes`, converted to `dtype`: tensors broadcast, numbers repeat. An
        operand of another type than `through`, where given, is first rounded to that.
        """

    def elementwise(
        self,
        node: TracedNode,
        operands: Sequence[Any],
        body: Callable[..., Expr],
        compute: DType | None = None,
    ) -> TensorValue:
        """The one result of `node`: `body` of its broadcast operands, each converted to `compute` (by default
        the type that the result is computed in).
        """

    def reduce(
        self,
        kind: str,
        size: Sequence[IndexLike],
        dims: Sequence[int],
        values: Callable[[Sequence[IndexLike]], tuple[Expr, ...]],
        results: Sequence[TensorValue | None],
    ) -> tuple[Expr, ...]:
        """Reduce the dimensions `dims` of a space of `size`. `values` returns what is reduced at given
        coordinates; each of `results` that is not None becomes stored. Returns each result's element at its
        own `axes`.
        """

    def realize(self, value: TensorValue, reason: str = "read by a call") -> View:
        """Store a value that is still an expression, and return where any value is stored."""

    def stored(
        self, like: torch.Tensor | TensorValue, stride: tuple[IndexLike, ...] | None = None
    ) -> TensorValue:
        """A value in a new buffer, which a node given to `emit` must write."""

    def emit(self, node: Node) -> None:
        """Append a node of the representation, such as a scan or a scatter. Its name comes from `fresh`."""

    def fresh(self, prefix: str) -> str:
        """The next name with this prefix that nothing in the graph has."""

    def call(
        self,
        node: TracedNode,
        op: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        offered: bool = False,
        results: Any = None,
    ) -> Any:
        """Call an operator of the library, by its name, whose results are those of `node`, or like the fake
        tensors `results`, in a list where there are several, None for one that is not made; `offered`:
        plugins' choices may take the call over.
        """

    def pack(self, op: str, parameter: TensorValue, args: tuple[Any, ...] = ()) -> TensorValue:
        """What an operator makes of a parameter for which `RewriteContext.may_pack` said yes, computed once,
        and again when the parameter has changed. Only calls may read it; it need not be a plain tensor.

        Args:
            op: an operator that takes the parameter, then plain values, and changes nothing.
            args: these values, in tuples and not in lists.
        """

    def inline(self, module: Any, arguments: Sequence[Any]) -> Any:
        """What a traced function of numbers, such as an argument of a higher-order operator, gives for some
        arguments: values without dimensions, whose content may be an expression of anything. Its results
        are such values too. Raises `UnsupportedError` where a part of it is no scalar expression.
        """

    def add_object(self, prefix: str, value: object) -> str:
        """Put an object into the graph's table. If it can be called, the name that this returns is an
        operator that a call given to `emit` may have; an attribute `records` says whether all that it does
        is to launch work on the current stream, so that a program with it can be recorded, and `storable`
        whether pickling it keeps all that it is, so that a program with it can be stored. One that is a
        `polyfuse.plugin.WrittenKernel` is compared where the option `check` asks for it.
        """
