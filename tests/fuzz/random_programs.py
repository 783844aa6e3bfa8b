"""Random functions over tensors, the same for the same seed: what a compiler may meet in any combination."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Step = Callable[[list[Tensor], list[Tensor]], Tensor]

SIZES = ((6,), (4, 6), (6, 4), (4, 1), (4, 6, 3), (1, 6), (2, 12))
"""Small and related, so that shapes broadcast, reshape and line up often."""

UNARY = (torch.sin, torch.tanh, torch.neg, torch.abs, torch.relu, torch.sigmoid, torch.exp, torch.floor)
BINARY = (torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.atan2)
REDUCTIONS = (torch.sum, torch.amax, torch.amin, torch.mean, torch.prod)


@dataclass
class Program:
    """A function of tensors: a list of steps, each of which makes one more tensor of those before.

    `tables` are inputs too, of whole numbers: steps get them after the others, from the end.
    """

    inputs: list[Tensor]
    steps: list[tuple[str, Step]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    tables: list[Tensor] = field(default_factory=list)

    @property
    def arguments(self) -> list[Tensor]:
        """All that it is called with."""
        return [*self.inputs, *self.tables]

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        known = list(arguments[: len(self.inputs)])
        tables = list(arguments[len(self.inputs) :])
        for _, step in self.steps:
            known.append(step(known, tables))
        return tuple(known[i] for i in self.results)

    def __repr__(self) -> str:
        lines = [f"v{i} = input {tuple(value.shape)}" for i, value in enumerate(self.inputs)]
        first = len(self.inputs)
        lines += [f"v{first + i} = {text}" for i, (text, _) in enumerate(self.steps)]
        return "\n".join([*lines, "return " + ", ".join(f"v{i}" for i in self.results)])


class Maker:
    """Makes one program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.program = Program([self._tensor() for _ in range(self.random.randint(2, 4))])
        self.values = list(self.program.inputs)

    def make(self, length: int) -> Program:
        """A program of so many steps. What is made last, and some of the rest, is returned."""
        choices = (
            *(self.unary,) * 4,
            *(self.binary,) * 5,
            *(self.reduction,) * 3,
            *(self.view,) * 3,
            *(self.rows, self.concatenation, self.gathering, self.scattering, self.choosing),
            *(self.product, self.overwriting, self.rounding),
        )
        while len(self.program.steps) < length:
            self.random.choice(choices)()
        last = len(self.values) - 1
        others = [i for i in range(len(self.program.inputs), last) if self.random.random() < 0.15]
        self.program.results = [*others, last]
        return self.program

    def _tensor(self) -> Tensor:
        return torch.randn(self.random.choice(SIZES), generator=self.generator)

    def _pick(self, fits: Callable[[Tensor], bool] = lambda _: True) -> int | None:
        """The number of a value; later ones are likelier, so that long chains arise."""
        found = [i for i, value in enumerate(self.values) if fits(value)]
        return max(self.random.choices(found, k=2)) if found else None

    def _add(self, text: str, step: Step) -> None:
        value = step(self.values, self.program.tables)
        # large numbers would turn a rounding into a difference, by a sine for instance
        if value.numel() and value.numel() <= 256 and bool((value.abs() < 30).all()):
            self.program.steps.append((text, step))
            self.values.append(value)

    def unary(self) -> None:
        i, function = self._pick(), self.random.choice(UNARY)
        self._add(f"{function.__name__}(v{i})", lambda v, _: function(v[i]))

    def binary(self) -> None:
        i, function = self._pick(), self.random.choice(BINARY)
        j = self._pick(lambda other: _broadcasts(self.values[i], other))
        if self.random.random() < 0.2:
            number = self.random.choice((0.5, -1.0, 2.0))
            return self._add(f"v{i} * {number}", lambda v, _: v[i] * number)
        return self._add(f"{function.__name__}(v{i}, v{j})", lambda v, _: function(v[i], v[j]))

    def reduction(self) -> None:
        i = self._pick(lambda value: value.dim() > 0)
        dim, keep = self.random.randrange(self.values[i].dim()), self.random.random() < 0.5
        function = self.random.choice(REDUCTIONS)
        kind = self.random.random()
        if kind < 0.15 and self.values[i].shape[dim] > 1:
            self._add(f"var(v{i}, {dim}, {keep})", lambda v, _: torch.var(v[i], dim, keepdim=keep))
        elif kind < 0.25:
            self._add(
                f"argmax(v{i}, {dim}, {keep})", lambda v, _: torch.argmax(v[i], dim, keep).to(v[i].dtype)
            )
        else:
            self._add(
                f"{function.__name__}(v{i}, {dim}, {keep})", lambda v, _: function(v[i], dim, keepdim=keep)
            )

    def rows(self) -> None:
        i = self._pick(lambda value: value.dim() > 0)
        dim = self.random.randrange(self.values[i].dim())
        function = self.random.choice((torch.softmax, torch.cumsum, torch.log_softmax))
        self._add(f"{function.__name__}(v{i}, {dim})", lambda v, _: function(v[i], dim))

    def view(self) -> None:
        i = self._pick(lambda value: value.dim() > 0)
        value = self.values[i]
        dim = self.random.randrange(value.dim())
        other = self.random.randrange(value.dim())
        start = self.random.randrange(value.shape[dim])
        step = self.random.choice((1, 1, 2))
        even = 2 if value.numel() % 2 == 0 else 1
        views: list[tuple[str, Step]] = [
            (f"v{i}.transpose({dim}, {other})", lambda v, _: v[i].transpose(dim, other)),
            (f"v{i}.narrow({dim}, {start}, ...)[::{step}]",
             lambda v, _: v[i].narrow(dim, start, v[i].shape[dim] - start)[::step]),
            (f"v{i}.flatten()", lambda v, _: v[i].flatten()),
            (f"v{i}.reshape(-1, {even})", lambda v, _: v[i].reshape(-1, even)),
            (f"v{i}.flip({dim})", lambda v, _: v[i].flip(dim)),
            (f"v{i}.unsqueeze({dim})", lambda v, _: v[i].unsqueeze(dim) if v[i].dim() < 4 else v[i]),
            (f"v{i}.select({dim}, {start})", lambda v, _: v[i].select(dim, start)),
            (f"v{i}.contiguous().view(...)", lambda v, _: v[i].contiguous().view(-1)),
        ]  # fmt: skip
        self._add(*self.random.choice(views))

    def concatenation(self) -> None:
        i = self._pick(lambda value: value.dim() > 0)
        dim = self.random.randrange(self.values[i].dim())
        j = self._pick(lambda other: _equal_but(self.values[i], other, dim))
        self._add(f"cat((v{i}, v{j}), {dim})", lambda v, _: torch.cat((v[i], v[j]), dim))

    def gathering(self) -> None:
        i = self._pick(lambda value: value.dim() > 0)
        dim = self.random.randrange(self.values[i].dim())
        at, shown = self._places(self.values[i].shape[dim])
        self._add(f"v{i}.index_select({dim}, {shown})", lambda v, t: v[i].index_select(dim, t[at]))

    def scattering(self) -> None:
        i = self._pick(lambda value: value.dim() > 0)
        dim = self.random.randrange(self.values[i].dim())
        at, shown = self._places(self.values[i].shape[dim])

        def add(v: list[Tensor], t: list[Tensor]) -> Tensor:
            return v[i].index_add(dim, t[at], torch.sin(v[i].index_select(dim, t[at])))

        self._add(f"v{i}.index_add({dim}, {shown}, sin(...))", add)

    def _places(self, size: int) -> tuple[int, str]:
        """The number of a new table of places below `size`, and its text."""
        table = torch.tensor([self.random.randrange(size) for _ in range(self.random.randint(1, 5))])
        self.program.tables.append(table)
        return len(self.program.tables) - 1, str(table.tolist())

    def choosing(self) -> None:
        i = self._pick()
        j = self._pick(lambda other: _broadcasts(self.values[i], other))
        self._add(f"where(v{i} > v{j}, v{i}, 0.25)", lambda v, _: torch.where(v[i] > v[j], v[i], 0.25))

    def product(self) -> None:
        i = self._pick(lambda value: value.dim() == 2)
        if i is not None:
            self._add(f"v{i} @ v{i}.t()", lambda v, _: v[i] @ v[i].t())

    def overwriting(self) -> None:
        i = self._pick(lambda value: value.dim() > 0)
        dim = self.random.randrange(self.values[i].dim())
        start = self.random.randrange(self.values[i].shape[dim])

        def overwrite(v: list[Tensor], _: list[Tensor]) -> Tensor:
            mine = v[i].clone()
            mine.select(dim, start).mul_(2).add_(1)
            return mine.tanh_() if start % 2 else mine

        self._add(f"clone(v{i}).select({dim}, {start}).mul_(2).add_(1)", overwrite)

    def rounding(self) -> None:
        i = self._pick()
        self._add(
            f"(4 * v{i}).to(int64).to(float32)", lambda v, _: (4 * v[i]).to(torch.int64).to(torch.float32)
        )


def _broadcasts(one: Tensor, other: Tensor) -> bool:
    try:
        torch.broadcast_shapes(one.shape, other.shape)
    except RuntimeError:
        return False
    return True


def _equal_but(one: Tensor, other: Tensor, dim: int) -> bool:
    return one.dim() == other.dim() and all(
        a == b for d, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)) if d != dim
    )


def random_program(seed: int, length: int) -> Program:
    """The program of a seed."""
    return Maker(seed).make(length)
