"""The program of a seed: steps drawn at random, each tried in eager mode before it is added."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polyfuse_bench.fuzz.program import DTYPES, Input, Namespace, Program, Statement, namespace

__all__ = ["Maker", "Scale", "Step"]

Step = Callable[["Maker"], None]

_PALETTES = (
    *(("f32",),) * 7,
    *(("bf16",),) * 4,
    *(("f16",),) * 2,
    *(("bf16", "f32"),) * 4,
    *(("f16", "f32"),) * 2,
    ("bf16", "f16", "f32"),
    ("f64", "f32"),
)

_SMALL = (1, 2, 3, 4, 5, 6, 7, 8, 9)
_ODD = (11, 13, 15, 17, 19, 31, 33, 47, 63, 65, 66, 97, 127, 129)
_EVEN = (12, 16, 16, 24, 32, 32, 48, 64, 96, 128)
_LONG = (192, 255, 256, 257, 384, 500, 512, 1000, 1024, 1025, 1500, 2049)

LARGEST = 40.0
"""No value is larger: a sine would make a difference of its rounding, and 16 bits may not hold it."""


@dataclass(frozen=True)
class Scale:
    """How large programs are.

    Attributes:
        steps: the fewest and the most.
        elements: of a tensor, at most.
    """

    steps: tuple[int, int] = (4, 14)
    elements: int = 1 << 14


class Maker:
    """Makes one program. Steps ask it for values that fit, and add statements."""

    def __init__(self, seed: int, scale: Scale) -> None:
        self.random = random.Random(seed)
        self.scale = scale
        self.inputs: list[Input] = []
        self.statements: list[Statement] = []
        self.names: list[str] = []
        self.values: Namespace = namespace()
        self._empty = Program((), (), (), seed)
        self._exact: dict[int, bool] = {}
        self._used: set[str] = set()
        self.palette = self.random.choice(_PALETTES)
        self.dims = self._dims()

    def make(self, steps: Sequence[Step], weights: Sequence[int]) -> Program:
        """A program of steps drawn from these. What no step reads is returned, and some of the rest."""
        for _ in range(self.random.randint(1, 3)):
            self.input(self.sizes())
        wanted = self.random.randint(*self.scale.steps)
        # a program may be at a point from where little fits
        for _ in range(4 * wanted):
            if len(self.statements) >= wanted:
                break
            self.random.choices(steps, weights)[0](self)
        return replace(
            self._empty,
            inputs=tuple(self.inputs),
            statements=tuple(self.statements),
            results=self._results(),
        )

    def _results(self) -> tuple[str, ...]:
        made = [name for statement in self.statements for name in statement.targets]
        chosen = [n for n in made if n not in self._used or self.random.random() < 0.12]
        return tuple(chosen) or tuple(self.names[-1:])

    def _dims(self) -> tuple[int, ...]:
        """Sizes that tensors have, so that they line up."""
        kinds = (_SMALL, _ODD, _EVEN, _LONG)
        weights = (3, 4, 4, 1) if self.scale.elements <= 1 << 14 else (1, 3, 3, 5)
        count = self.random.randint(2, 4)
        found = [self.random.choice(self.random.choices(kinds, weights)[0]) for _ in range(count)]
        return tuple(d for d in found if d <= self.scale.elements) or (8, 12)

    # What steps ask for.

    def chance(self, probability: float) -> bool:
        """True so often."""
        return self.random.random() < probability

    def sizes(self) -> tuple[int, ...]:
        """The sizes of a new tensor."""
        for _ in range(20):
            rank = self.random.choices((1, 2, 3, 4), (3, 9, 5, 1))[0]
            found = [1 if self.chance(0.06) else self.random.choice(self.dims) for _ in range(rank)]
            if torch.Size(found).numel() <= self.scale.elements:
                return tuple(found)
        return (self.random.choice(_SMALL), self.random.choice(_SMALL))

    def float_type(self) -> str:
        """One of the program's types."""
        return self.random.choice(self.palette)

    def input(self, sizes: Sequence[int], dtype: str = "") -> str:
        """A new floating-point input, of any layout."""
        return self._input(_laid_out(self, tuple(sizes), dtype or self.float_type()))

    def table(self, limit: int, sizes: Sequence[int], dtype: str = "i64") -> str:
        """A new input of integers from 0 to below the limit."""
        more = "" if dtype == "i64" else f", dtype={dtype!r}"
        return self._input(f"below({limit}, {_listed(sizes)}{more})")

    def permutation(self, length: int) -> str:
        """A new input of the integers below a length, each once."""
        return self._input(f"order({length})")

    def flags(self, sizes: Sequence[int]) -> str:
        """A new input of Booleans, most of them true."""
        return self._input(f"flags({_listed(sizes)})")

    def tensor(self, name: str) -> Tensor:
        """The value of a name in eager mode."""
        found: Tensor = self.values[name]
        return found

    def shape(self, name: str) -> tuple[int, ...]:
        """Its sizes."""
        return tuple(self.tensor(name).shape)

    def is_float(self, name: str) -> bool:
        """Whether it has a floating-point type."""
        return self.tensor(name).dtype.is_floating_point

    def dtype(self, name: str) -> str:
        """Its type, as statements say it."""
        return next(n for n, t in DTYPES.items() if t == self.tensor(name).dtype)

    def is_exact(self, name: str) -> bool:
        """Whether it was never rounded, so that what jumps may be computed of it."""
        return self._exact[self._memory_of(name)]

    def pick(self, fits: Callable[[str], bool] = lambda _: True, floats: bool = True) -> str | None:
        """A name that fits; later ones are likelier, so that long chains arise."""
        found = [n for n in self.names if (not floats or self.is_float(n)) and fits(n)]
        if not found:
            return None
        return found[max(self.random.randrange(len(found)) for _ in range(2))]

    def partner(self, name: str, dtype: str = "") -> str:
        """Another floating-point value that broadcasts with this one; sometimes a new input."""
        if not self.chance(0.2):
            found = self.pick(lambda n: n != name and self._broadcasts(name, n))
            if found is not None:
                return found
        sizes = list(self.shape(name))
        for i in range(len(sizes)):
            if self.chance(0.25):
                sizes[i] = 1
        drop = self.random.randrange(len(sizes)) if sizes and self.chance(0.4) else 0
        return self.input(sizes[drop:], dtype)

    def of_shape(self, sizes: Sequence[int], dtype: str = "", new: float = 0.5) -> str:
        """A floating-point value of these sizes, of a type if one is named; sometimes a new input."""
        wanted = tuple(sizes)
        if not self.chance(new):
            found = self.pick(lambda n: self.shape(n) == wanted and dtype in ("", self.dtype(n)))
            if found is not None:
                return found
        return self.input(wanted, dtype)

    def writable(self, name: str) -> bool:
        """Whether a statement may overwrite it: no two of its elements share memory."""
        tensor, reach = self.tensor(name), 0
        for size, stride in sorted(zip(tensor.shape, tensor.stride(), strict=True), key=lambda p: p[1]):
            if size > 1:
                if stride <= reach:
                    return False
                reach += (size - 1) * stride
        return True

    def shares_memory(self, one: str, other: str) -> bool:
        """Whether two names are views of one tensor."""
        return self._memory_of(one) == self._memory_of(other)

    # What steps add.

    def add(
        self,
        text: str,
        operands: Sequence[str],
        *,
        rounds: bool = True,
        sums: Sequence[str] = (),
        results: int = 1,
    ) -> tuple[str, ...]:
        """Add an assignment of an expression; answer the names of its results, none where it was left out.

        Args:
            operands: the names that it reads.
            rounds: whether its results are rounded.
            sums: those of its operands over which it accumulates.
            results: how many tensors the expression answers.
        """
        targets = tuple(
            f"v{len(self.values)}_{i}" if results > 1 else f"v{len(self.values)}" for i in range(results)
        )
        statement = Statement(f"{', '.join(targets)} = {text}", targets, tuple(sums), rounds=rounds)
        space = dict(self.values)
        if not self._runs(statement, space) or not all(self._is_good(space[n]) for n in targets):
            return ()
        exact = not rounds and all(self.is_exact(n) for n in operands)
        self.values = space
        for name in targets:
            self._exact.setdefault(self._memory_of(name), exact)
        self.names.extend(targets)
        self._used.update(operands)
        self.statements.append(statement)
        return targets

    def overwrite(
        self,
        target: str,
        text: str,
        operands: Sequence[str],
        *,
        rounds: bool = True,
        sums: Sequence[str] = (),
    ) -> bool:
        """Add a call that writes into `target`, or into a part of it."""
        if not self.writable(target) or any(o != target and self.shares_memory(o, target) for o in operands):
            return False
        whole = self.tensor(target)
        before = whole.clone()
        statement = Statement(text, (), tuple(sums), target, rounds)
        if not self._runs(statement, self.values) or not self._is_good(whole):
            whole.copy_(before)
            return False
        exact = not rounds and all(self.is_exact(n) for n in operands)
        self._exact[self._memory_of(target)] = exact and self.is_exact(target)
        self._used.update(operands)
        self.statements.append(statement)
        return True

    def _input(self, text: str) -> str:
        made = Input(f"a{len(self.inputs)}", text)
        self.inputs.append(made)
        self.values[made.name] = self._empty.argument(made)
        self.names.append(made.name)
        self._exact[self._memory_of(made.name)] = True
        return made.name

    def _runs(self, statement: Statement, space: Namespace) -> bool:
        try:
            exec(statement.code, space)
        except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
            return False
        return True

    def _is_good(self, value: Tensor) -> bool:
        if not 0 < value.numel() <= self.scale.elements or value.dim() > 5:
            return False
        return value.dtype == torch.bool or bool((value.abs() <= LARGEST).all())

    def _memory_of(self, name: str) -> int:
        return self.tensor(name).untyped_storage().data_ptr()

    def _broadcasts(self, one: str, other: str) -> bool:
        try:
            found = torch.broadcast_shapes(self.shape(one), self.shape(other))
        except RuntimeError:
            return False
        return found.numel() <= self.scale.elements


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes))


def _laid_out(m: Maker, sizes: tuple[int, ...], dtype: str) -> str:
    """The text of an input of these sizes: contiguous in most cases."""
    kind = m.random.choices(("plain", "transposed", "step", "part", "expanded"), (12, 3, 2, 2, 1))[0]
    rank = len(sizes)
    if kind == "transposed" and rank > 1:
        order = m.random.sample(range(rank), rank)
        stored = [0] * rank
        for position, dim in enumerate(order):
            stored[dim] = sizes[position]
        return f"normal({dtype!r}, {_listed(stored)}).permute({_listed(order)})"
    if kind == "step" and rank:
        dim = m.random.randrange(rank)
        stored = [2 * s if i == dim else s for i, s in enumerate(sizes)]
        cut = ", ".join("::2" if i == dim else ":" for i in range(rank))
        return f"normal({dtype!r}, {_listed(stored)})[{cut}]"
    if kind == "part" and rank:
        dim = m.random.randrange(rank)
        stored = [s + 3 if i == dim else s for i, s in enumerate(sizes)]
        cut = ", ".join("1:-2" if i == dim else ":" for i in range(rank))
        return f"normal({dtype!r}, {_listed(stored)})[{cut}]"
    if kind == "expanded" and rank:
        dim = m.random.randrange(rank)
        stored = [1 if i == dim else s for i, s in enumerate(sizes)]
        return f"normal({dtype!r}, {_listed(stored)}).expand({_listed(sizes)})"
    return f"normal({dtype!r}, {_listed(sizes)})"
