"""One level of the loop nest, and the values known there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from polyfuse.ir.statements import Statement, Store
from polyfuse.ir.types import DType
from polyfuse.kit import Writer
from polyfuse.symbolic import IndexLike, axis, free_axes, substitute
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.memory.address import index_text
from polyfuse_cpp.memory.index_checks import IndexCheck


@dataclass(frozen=True)
class Value:
    """A value in scope.

    Attributes:
        dtype: type in the IR.
        vector: whether it is a vector; a scalar has one text, or one per copy where copies differ but lanes
            do not.
        texts: C++ text, one per copy.
        narrow: whether an i64 is held in 32 bits.
        rounded: whether a half float has been rounded to its precision.
        checked: whether it is an index that was checked where it was limited.
        index: the index expression it is the value of, if it is.
    """

    dtype: DType
    vector: bool
    texts: tuple[str, ...]
    narrow: bool = False
    rounded: bool = True
    index: IndexLike | None = None
    checked: bool = False

    def at(self, copy: int) -> str:
        """The text for one copy."""
        return self.texts[copy if len(self.texts) > 1 else 0]


@dataclass(frozen=True)
class InterleavedStores:
    """Stores of one vector each that together fill contiguous memory.

    Attributes:
        stores: in the order of their elements.
        end: where the lane axis, in elements, ends; None where every vector of the axis is whole.
    """

    stores: tuple[Store, ...]
    end: IndexLike | None


@dataclass
class Scope:
    """One level of the loop nest, and the values known there.

    Attributes:
        lane: axis that lanes run along here; None where everything is scalar.
        lanes: lanes of a vector.
        copies: steps of the lane axis that are written side by side.
        tail: text of the number of valid lanes where it is fewer than all.
        exclusive: stores (by identity) that no two threads do to one element.
        local_lanes: lanes that one element of scratch spans: 1 unless lanes run along a parallel axis.
        repeated: a parallel axis that each vector runs through by itself; empty where there is none.
        features: headers that the text needs, collected.
        tiles: elements of the tiles that stand for a load or store (by identity), one for each copy.
        streaming: stores (by identity) that bypass the caches where a whole vector is written.
        past: text of whether these do.
        checks: checks of indices by the name of the limited index.
        interleaved: stores (by identity) with the group that they are interleaved in.
    """

    facts: Facts
    out: Writer
    lane: str | None
    lanes: int
    copies: int = 1
    tail: str | None = None
    exclusive: frozenset[int] = frozenset()
    local_lanes: int = 1
    repeated: str = ""
    features: set[str] = field(default_factory=set)
    env: dict[str, Value] = field(default_factory=dict)
    checks: Mapping[str, IndexCheck] = field(default_factory=dict)
    tiles: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    streaming: frozenset[int] = frozenset()
    past: str = "true"
    interleaved: Mapping[int, InterleavedStores] = field(default_factory=dict)

    def child(self, **changes: object) -> Self:
        """The same level, one scope further in."""
        values = dict(self.__dict__)
        values.update(changes)
        values["env"] = dict(self.env)
        return type(self)(**values)

    # Reading values.

    def text(self, name: str, vector: bool, copy: int = 0, narrow: bool = False) -> str:
        """Text of a value in the form asked for."""
        found = self.env[name]
        text = found.at(copy)
        if not found.rounded:
            text = self._rounded(text, found.dtype)
        if found.narrow and not narrow:
            text = f"cast<i64>({text})"
        return f"splat<Vec>({text})" if vector and not found.vector else text

    def _rounded(self, text: str, dtype: DType) -> str:
        self.features.add("kernel")
        return f"round_to<{dtype}>({text})"

    def at_copy(self, index: IndexLike, copy: int) -> IndexLike:
        """`index` at the first lane of a copy."""
        step: IndexLike = copy * self.lanes if self.lane is not None else 0
        if step == 0 or self.lane is None or self.lane not in free_axes(index):
            return index
        return substitute(index, {self.lane: axis(self.lane, self.facts.sizes[self.lane]) + step})

    # Naming values.

    def _bind(
        self,
        stmt: Statement,
        vector: bool,
        texts: Sequence[str],
        *,
        narrow: bool = False,
        rounded: bool = True,
        declare: bool = True,
    ) -> None:
        """Name the value of a statement."""
        name = stmt.targets[0]
        if declare:
            names = []
            for copy, text in enumerate(texts):
                names.append(self._name(name, copy))
                self.out.line(f"const auto {names[-1]} = {text};")
            texts = names
        self.env[name] = Value(stmt.dtype, vector, tuple(texts), narrow, rounded)

    def bind_results(self, targets: Sequence[str], results: Sequence[Sequence[str]], vector: bool) -> None:
        """Name the results of a reduction or scan: for each copy, a text for each target."""
        for position, target in enumerate(targets):
            if target:
                names = [self._name(target, copy) for copy in range(len(results))]
                for name, texts in zip(names, results, strict=True):
                    self.out.line(f"const auto {name} = {texts[position]};")
                self.env[target] = Value(self.facts.dtypes[target], vector, tuple(names))

    def read_tables(self, tables: Mapping[str, str]) -> None:
        """Name values that are stored in arrays, an element for each position of the lane axis."""
        for name, table in tables.items():
            texts = []
            for copy in range(self.copies):
                texts.append(self._name(name, copy))
                at = index_text(self.at_copy(axis(self.lane or "", self.facts.sizes[self.lane or ""]), copy))
                self.out.line(f"const auto {texts[-1]} = load<Vec>({table} + {at});")
            self.env[name] = Value(self.facts.dtypes[name], True, tuple(texts))

    def _name(self, name: str, copy: int) -> str:
        return name if copy == 0 else f"{name}_{copy}"

    def _note_index(self, stmt: Statement, index: IndexLike) -> None:
        self.env[stmt.targets[0]] = replace(self.env[stmt.targets[0]], index=index)

    def _is_vector(self, *names: str) -> bool:
        return any(self.env[name].vector for name in names)

    def _spread(self, *names: str) -> range:
        """The copies in which a value made of others differs."""
        differs = any(self.env[name].vector or len(self.env[name].texts) > 1 for name in names)
        return range(self.copies if differs else 1)
