"""Flexible attention as C++: the user's functions over vectors of a query's scores, within the frame of
``prelude/attention.h``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import e, log2

from polyfuse.flex.call import Written
from polyfuse.flex.problem import AXES, SCORE, Array, Blocks, Problem, arguments_of, statements
from polyfuse.ir.kernel import Kernel, KernelArg, Section
from polyfuse.ir.statements import Load, Statement, Store
from polyfuse.ir.types import DType
from polyfuse.kit import Writer, backward_slice
from polyfuse.plugin import Source
from polyfuse.symbolic import Index, IndexLike, axis, axis_name, is_equal
from polyfuse_cpp.backend import KERNEL_LANGUAGE
from polyfuse_cpp.facts import Facts
from polyfuse_cpp.isa import Isa
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.entry import plainly_named
from polyfuse_cpp.loops.scope import Value

_SCORES = "scores"
_GIVEN = ("query", "key", "value", "result", "logs", "greatest")


def flex_source(
    problem: Problem,
    operands: Sequence[Array],
    lists: Sequence[Blocks],
    results: Sequence[Array],
    isa: Isa,
) -> tuple[Written, tuple[Index, ...]]:
    """A kernel that takes tensors, then symbols, then sizes and strides; and these symbols.

    Args:
        operands: queries, keys and values.
        results: the output, the logarithms of the sums of each query's exponentials, and maybe its greatest
            score.

    Raises:
        UnsupportedError: the functions use what the vector layer does not have.
    """
    arguments = arguments_of(problem, (*operands, *results), lists)
    text = _KernelText(problem, isa, [a.name for a in arguments.arrays], list(arguments.sizes))
    text.entry(operands, lists, results, [str(a.dtype) for a in arguments.arrays])
    signature = "p" * len(arguments.arrays) + "i" * (len(arguments.sizes) + len(text.numbers))
    features = ",".join(sorted(text.features))
    source = Source(
        "flex_attention", text.out.text(), KERNEL_LANGUAGE, meta=f"{signature};{features};{isa.name}"
    )
    names = tuple(a.name for a in arguments.arrays)
    symbols = tuple(arguments.sizes.values())
    return Written(source, names, (*symbols, *text.numbers)), symbols


@dataclass(frozen=True)
class _Rows:
    """The functions of scores as a kernel over `AXES` that changes scores where they lie.

    Attributes:
        kernel: with names that C++ can use.
        axes: names of the four axes there.
        names: of captured tensors and symbols there, by their own.
        score, value, mask: names of the score before and after, and of whether it counts ("": always).
    """

    kernel: Kernel
    axes: tuple[str, ...]
    names: Mapping[str, str]
    score: str
    value: str
    mask: str

    @classmethod
    def of(cls, problem: Problem, symbols: Sequence[str]) -> _Rows:
        roots = [problem.score] if problem.mask is None else [problem.score, problem.mask]
        found, names = statements(roots)
        sizes = (problem.batch, problem.heads, problem.queries, problem.keys)
        axes = [axis(name, n) for name, n in zip(AXES, sizes, strict=True)]
        last = axes[-1]
        body: list[Statement] = [Load(SCORE, _SCORES, last, DType.f32), *found]
        mask = None if problem.mask is None else names[problem.mask]
        body.append(Store(_SCORES, last, names[problem.score], DType.f32, mask=mask))
        args = [KernelArg(_SCORES, "inout", DType.f32)]
        args += [KernelArg(a.name, "in", a.dtype) for a in problem.captured]
        args += [KernelArg(name, "size", DType.i64) for name in symbols]
        hints = tuple(n if isinstance(n, int) else 128 for n in sizes)
        kernel = plainly_named(
            Kernel("flex", "cpu", tuple(axes), (), tuple(args), (), (Section(False, tuple(body)),), hints)
        )
        (section,) = kernel.sections
        first, store = section.body[0], section.body[-1]
        assert isinstance(first, Load) and isinstance(store, Store)
        renamed = dict(zip((a.name for a in args), (a.name for a in kernel.args), strict=True))
        named = tuple(axis_name(a) for a in kernel.axes)
        return cls(kernel, named, renamed, first.target, store.value, store.mask or "")

    @property
    def body(self) -> tuple[Statement, ...]:
        """What is computed of a score."""
        return self.kernel.sections[0].body[1:-1]

    @property
    def is_changed(self) -> bool:
        """Whether the score becomes another one."""
        return self.value != self.score


class _KernelText:
    """The text of one kernel.

    Args:
        arrays: names of tensors in the graph, in the kernel's order.
        symbols: names of sizes there.
    """

    def __init__(self, problem: Problem, isa: Isa, arrays: Sequence[str], symbols: Sequence[str]) -> None:
        self.problem, self.isa = problem, isa
        self.rows = _Rows.of(problem, symbols)
        self.out = Writer("  ")
        self.features = {"flex", "kernel", "omp"}
        self.numbers: list[IndexLike] = []
        self._symbols = symbols
        self._given = {name: f"a{k}" for k, name in enumerate(arrays)}

    # --- the functions ---------------------------------------------------------------------------------

    def _fields(self) -> list[tuple[str, str, str]]:
        """Type, name and origin of what the functions read."""
        names = self.rows.names
        found = [(f"const {a.dtype}*", names[a.name], self._given[a.name]) for a in self.problem.captured]
        return found + [("i64", names[name], f"s{k}") for k, name in enumerate(self._symbols)]

    def _rule(self) -> None:
        """The structure by which the frame walks through blocks and changes scores."""
        out, rows = self.out, self.rows
        plain = self.problem.is_plain
        call, row = "const attention_call<T>& c", "i64 from, i64 here, i64 width"
        with out.block("struct flex_rule : flex_lists", "};"):
            out.line(f"static constexpr bool waits = {str(plain).lower()};")
            for kind, name, _ in self._fields():
                out.line(f"{kind} {name};")
            out.line("template <class T>")
            with out.block(f"bool touches({call}, i64, {row}, bool whole) const"):
                always = rows.is_changed or not plain
                out.line(f"return {'true' if always else 'here < width' + ' || !whole' * bool(rows.mask)};")
            self._row("whole_row", masked=False)
            if rows.mask:
                self._row("partial_row", masked=True)
            out.line("template <class T>")
            where = "i64 image, i64 head, i64 query"
            with out.block(f"void row({call}, f32* scores, {where}, {row}, bool whole) const"):
                passed = "scores, c.scale, image, head, index_min(query, c.queries - 1), from, here, width"
                if rows.mask:
                    out.line(f"if (!whole) return partial_row({passed});")
                out.line(f"whole_row({passed});")

    def _row(self, name: str, masked: bool) -> None:
        """A function that changes the scores of one query."""
        out, rows = self.out, self.rows
        b, h, m, n = rows.axes
        with out.block(
            f"__attribute__((noinline)) void {name}(f32* scores, f32 scale, i64 {b}, i64 {h}, i64 {m}, "
            "i64 from, i64 here, i64 width) const"
        ):
            for kind, field, _ in self._fields():
                # stores to scores may not change what is read through `this`
                out.line(f"{kind} const {field} = this->{field};")
            wanted = [rows.value, rows.mask] if masked else [rows.value]
            body = backward_slice(rows.body, wanted)
            outside = self._frame(None, None)
            done = outside.emit_invariants(body, {n})
            out.line("i64 j = 0;")
            with out.block("for (; j + 16 <= here; j += 16)"):
                self._vector(body, outside, done, masked, None)
            with out.block("if (j < here)"):
                out.line("const i64 tail = here - j;")
                self._vector(body, outside, done, masked, "tail")
                out.line("j += 16;")
            out.line("for (; j < width; j += 16) store(scores + j, splat<Vec>(f32(-__builtin_inff())));")

    def _frame(self, lane: str | None, tail: str | None) -> Frame:
        facts = Facts.of(self.rows.kernel)
        return Frame(facts, self.out, lane, self.isa.lanes, tail=tail, features=self.features)

    def _vector(
        self,
        body: Sequence[Statement],
        outside: Frame,
        done: frozenset[int],
        masked: bool,
        tail: str | None,
    ) -> None:
        out, rows = self.out, self.rows
        lane = rows.axes[-1]
        out.line(f"const i64 {lane} = from + j;")
        out.line("const vf32 before = load<Vec>(scores + j);")
        frame = self._frame(lane, tail)
        frame.env = dict(outside.env)
        plain = "before" if self.problem.is_plain else "before * splat<Vec>(scale)"
        out.line(f"const vf32 factored = {plain};")
        frame.env[rows.score] = Value(DType.f32, True, ("factored",))
        for stmt in body:
            if id(stmt) not in done:
                frame.emit(stmt)
        text = frame.text(rows.value, True)
        seen = [frame.text(rows.mask, True)] if masked else []
        seen += [f"first_n<Vec>({tail})"] if tail else []
        hidden = "splat<Vec>(f32(-__builtin_inff()))"
        for condition in seen:
            text = f"where({condition}, {text}, {hidden})"
        out.line(f"store(scores + j, {text});")

    # --- the call --------------------------------------------------------------------------------------

    def _number(self, value: IndexLike) -> str:
        """A size or stride, which is an argument, so that one kernel serves others too."""
        if value not in self.numbers:
            self.numbers.append(value)
        return f"n{self.numbers.index(value)}"

    def entry(
        self,
        operands: Sequence[Array],
        lists: Sequence[Blocks],
        results: Sequence[Array],
        kinds: Sequence[str],
    ) -> None:
        """Write all of it; `kinds` are the types of its tensors."""
        out, body = self.out, Writer("  ")
        self._call(body, (*operands, *results))
        self._lists(body, lists)
        body.line(f"attention<{self.problem.depth}>(c, r);")
        parameters = [f"{kind}* {name}" for kind, name in zip(kinds, self._given.values(), strict=True)]
        parameters += [f"i64 s{k}" for k in range(len(self._symbols))]
        parameters += [f"i64 n{k}" for k in range(len(self.numbers))]
        out.line("namespace pf {")
        self._rule()
        visible = '__attribute__((visibility("default")))'
        with out.block(f'extern "C" {visible} void {Source.SYMBOL}({", ".join(parameters)})'):
            for line in body.text().splitlines():
                out.line(line)
        out.line("}  // namespace pf")
        out.line(f"using pf::{Source.SYMBOL};")

    def _call(self, body: Writer, arrays: Sequence[Array]) -> None:
        """Fill the frame's structure."""
        p = self.problem
        body.line(f"attention_call<{p.dtype}> c;")
        for name, array in zip(_GIVEN, arrays, strict=False):
            body.line(f"c.{name} = {self._given[array.name]};")
            for k, step in enumerate(array.stride[:3]):
                shared = name in ("key", "value") and k == 0 and is_equal(p.key_batch, 1)
                body.line(f"c.{name}_step[{k}] = {'0' if shared else self._number(step)};")
        if len(arrays) < len(_GIVEN):
            body.line("c.greatest = nullptr;")
        sizes = {"images": p.batch, "heads": p.heads, "key_heads": p.key_heads}
        for name, size in (sizes | {"queries": p.queries, "keys": p.keys}).items():
            body.line(f"c.{name} = {self._number(size)};")
        body.line("c.mask = nullptr;")
        body.line(f"c.scale = f32({p.scale!r});")
        body.line("c.causal = false;")
        body.line(f"c.log_factor = f32({log2(e)!r});")
        body.line("c.empty_log = -__builtin_inff();")

    def _lists(self, body: Writer, lists: Sequence[Blocks]) -> None:
        """Fill the structure of what the functions read, and of the lists of blocks."""
        p = self.problem
        body.line("flex_rule r;")
        body.line(f"r.lists = {len(lists)};")
        body.line(f"r.images = {self._number(p.mask_batch)};")
        body.line(f"r.heads = {self._number(p.mask_heads)};")
        body.line(f"r.query_block = {p.query_block};")
        body.line(f"r.key_block = {p.key_block};")
        for k, item in enumerate(lists):
            body.line(f"r.list[{k}].whole = {str(item.whole).lower()};")
            for name, array in (("count", item.count), ("index", item.index)):
                body.line(f"r.list[{k}].{name} = {self._given[array.name]};")
                for i, step in enumerate(array.stride):
                    body.line(f"r.list[{k}].{name}_step[{i}] = {self._number(step)};")
        for _, name, origin in self._fields():
            body.line(f"r.{name} = {origin};")
