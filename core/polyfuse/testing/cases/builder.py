"""Kernels written as expressions: the kit's cases say what is stored, and statements follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from polyfuse.ir.expr import Access, Expr, load, rewrite, walk
from polyfuse.ir.kernel import Kernel, KernelArg, RowBuffer, Section
from polyfuse.ir.nodes import Node, Pointwise, Reduction, Scan, Scatter
from polyfuse.ir.ops import CONTRACTIONS
from polyfuse.ir.statements import Statement, definition, statement
from polyfuse.ir.types import DType
from polyfuse.ir.verifier.rules import accumulates
from polyfuse.symbolic import Index, IndexLike


@dataclass(frozen=True)
class Store:
    """``buffer[index] mode= value``."""

    buffer: str
    index: IndexLike
    value: Expr
    mode: str = "set"
    indirect: tuple[Expr, ...] = ()
    mask: Expr | None = None


@dataclass(frozen=True)
class Carry:
    """``targets = reduce kind (values)``, or a scan."""

    targets: tuple[str, ...]
    kind: str
    values: tuple[Expr, ...]
    scan: bool = False


Action = Store | Carry


def result(name: str, dtype: DType) -> Expr:
    """A result of an earlier `Carry`, in an expression of the kit."""
    return Expr("result", (), dtype, name)


@dataclass
class Builder:
    """Collects the sections of one kernel, and the graph nodes that would have made them."""

    name: str
    axes: tuple[Index, ...]
    raxes: tuple[Index, ...]
    args: tuple[KernelArg, ...]
    row_buffers: tuple[RowBuffer, ...] = ()
    device: str = "cpu"
    numerics: str = "fast"
    sections: list[Section] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    _count: int = 0
    _visible: dict[Expr, str] = field(default_factory=dict)

    def once(self, *actions: Action) -> Builder:
        """Add a section that runs once at each parallel point."""
        return self._section(False, actions)

    def loop(self, *actions: Action) -> Builder:
        """Add a section that runs over the reduction axes."""
        return self._section(True, actions)

    def kernel(self, hints: Sequence[int] = ()) -> Kernel:
        """The kernel so far."""
        return Kernel(
            name=self.name,
            device=self.device,
            axes=self.axes,
            raxes=self.raxes,
            args=self.args,
            row_buffers=self.row_buffers,
            sections=tuple(self.sections),
            size_hints=tuple(hints),
            numerics=self.numerics,
        )

    def _section(self, looped: bool, actions: Sequence[Action]) -> Builder:
        body: list[Statement] = []
        # what a section that is not looped computes, later ones may use
        known = dict(self._visible) if looped else self._visible
        for action in actions:
            if isinstance(action, Store):
                self._store(action, body, known)
            else:
                self._carry(action, body, known)
            self.nodes.append(self._node(action, looped))
        self.sections.append(Section(looped, tuple(body)))
        return self

    def _value(self, root: Expr, body: list[Statement], known: dict[Expr, str]) -> str:
        for expr in walk(root):
            if expr in known:
                continue
            if expr.op == "result":
                known[expr] = expr.payload
                continue
            known[expr] = f"v{self._count}"
            self._count += 1
            args = tuple(known[a] for a in expr.args)
            body.append(definition(known[expr], expr, args))
        return known[root]

    def _store(self, store: Store, body: list[Statement], known: dict[Expr, str]) -> None:
        parts = [store.value, *store.indirect] + ([] if store.mask is None else [store.mask])
        args = tuple(self._value(e, body, known) for e in parts)
        access = Access(store.buffer, store.index, len(store.indirect), store.mask is not None)
        body.append(statement("store", (), args, store.value.dtype, (access, store.mode)))
        # what was loaded from there may be something else now
        for names in (known, self._visible):
            for expr in [e for e in names if e.op == "load" and e.buffer == store.buffer]:
                del names[expr]

    def _carry(self, carry: Carry, body: list[Statement], known: dict[Expr, str]) -> None:
        args = tuple(self._value(e, body, known) for e in carry.values)
        op = "scan" if carry.scan else "reduce"
        dtype = carry.values[0].dtype
        if carry.kind in CONTRACTIONS:
            dtype = accumulates(dtype)
        body.append(statement(op, carry.targets, args, dtype, carry.kind))

    def _node(self, action: Action, looped: bool) -> Node:
        name = f"n{len(self.nodes)}"
        if isinstance(action, Carry):
            make = Scan if action.scan else Reduction
            return make(
                name,
                axes=self.axes,
                raxes=self.raxes,
                outputs=action.targets,
                index=0,
                kind=action.kind,
                values=tuple(_standing_alone(e) for e in action.values),
            )
        axes = self.axes + (self.raxes if looped else ())
        value = _standing_alone(action.value)
        if action.mode == "set" and not action.indirect and action.mask is None:
            return Pointwise(name, axes=axes, raxes=(), output=action.buffer, index=action.index, value=value)
        return Scatter(
            name,
            axes=axes,
            raxes=(),
            target=action.buffer,
            index=action.index,
            indirect=tuple(_standing_alone(e) for e in action.indirect),
            value=value,
            mode=action.mode,
            mask=None if action.mask is None else _standing_alone(action.mask),
        )


def _standing_alone(root: Expr) -> Expr:
    """The expression with results of earlier reductions read from memory, as separate nodes would."""

    def change(expr: Expr) -> Expr:
        return load(expr.payload, 0, expr.dtype) if expr.op == "result" else expr

    return rewrite(root, change)
