"""The right operand of a product as C++ text: panels of columns, laid out or read where they are."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.kit import Writer
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.odometer import advance, start_at
from polyfuse_cpp.matmul.plans import ProductPlan, Way
from polyfuse_cpp.matmul.problem import Product
from polyfuse_cpp.memory.address import index_text

__all__ = ["RightText"]


@dataclass
class RightText:
    """The right operand. `layout` says how panels are made: copied, turned over, or computed."""

    product: Product
    plan: ProductPlan
    lanes: int
    out: Writer
    features: set[str]

    def __post_init__(self) -> None:
        side = self.product.right
        self.facts = self.product.facts
        self.wide = self.plan.vectors * self.lanes
        plain = side.index is not None and side.step is not None and side.apart is not None
        if plain and side.apart == 1:
            self.layout = "along"
        else:
            self.layout = "across" if plain and side.step == 1 else "any"

    @property
    def panel(self) -> int:
        """Elements of a panel that is laid out."""
        return self.plan.depth * self.wide

    def room(self) -> str:
        """Elements to keep, as text."""
        return "0" if self.plan.way in (Way.DOTS, Way.KEPT) else str(self.plan.panels * self.panel)

    @property
    def element(self) -> str:
        """The type of the elements that are laid out."""
        return "bf16" if self.plan.way.paired else str(self.product.dtype)

    def _panel_at(self) -> str:
        room = "(bf16*)right_room" if self.plan.way.paired else "right_room"
        return f"{room} + (panel - panel_a) * {self.panel}"

    # Text at its places.

    def before_pass(self) -> None:
        """Lay out the panels of a block, or say where its one panel is."""
        out, way = self.out, self.plan.way
        if way.packed:
            with out.block("for (i64 panel = panel_a; panel < panel_e; ++panel)"):
                self._axes_of("panel")
                out.line(f"{self.element}* const to = {self._panel_at()};")
                self._lay_out()
            return
        if way is Way.KEPT:
            return
        if way is Way.DIRECT:
            self._in_place()
            return
        # with those after the panel, which are fetched ahead
        count = self.wide + self.plan.columns
        out.line(f"const {self.product.right.memory}* columns_at[{count}];")
        with out.block():
            self._axes_of("panel_a")
            lane = self.product.right.axes[-1]
            with out.block(f"for (i64 j = 0; j < {count}; ++j)"):
                out.line(f"const i64 {lane} = index_min(column_from + j, column_count - 1);")
                out.line(f"columns_at[j] = {self._address('0', lane)};")

    def place_of_panel(self) -> None:
        """Declare the places of the outer axes and the first column of the panel at hand."""
        self._axes_of("panel")

    def operand(self) -> tuple[str, str]:
        """Where the panel at hand lies, and how far apart its steps are."""
        if self.plan.way is Way.DIRECT:
            return "panel_at", "panel_step"
        if self.plan.way is Way.KEPT:
            step = self.product.right.step
            assert step is not None
            return self._address("depth_from", "column_from"), index_text(step)
        return self._panel_at(), str(self.wide)

    # Layouts.

    def _axes_of(self, panel: str) -> None:
        outer = self.product.right.axes[:-1]
        if all(self.facts.sizes[a] == 1 for a in outer):
            start_at(outer, self.facts.sizes, "0", self.out, fixed=True)
            self.out.line(f"const i64 column_from = {panel} * {self.wide};")
            return
        start_at(outer, self.facts.sizes, f"{panel} / across_count", self.out, fixed=True)
        self.out.line(f"const i64 column_from = {panel} % across_count * {self.wide};")

    def _lay_out(self) -> None:
        """One panel, for one pass."""
        side, vectors = self.product.right, self.plan.vectors
        if self.layout == "any":
            self._computed()
            return
        function, distance = ("along", side.step) if self.layout == "along" else ("across", side.apart)
        assert distance is not None
        family = "pair" if self.plan.way.paired else "product"
        self.out.line(
            f"{family}_{function}<{vectors}>(to, {self._address('depth_from', 'column_from')}, "
            f"{index_text(distance)}, depth_here, column_count - column_from);"
        )

    def _in_place(self) -> None:
        """Where the panel is; one at the edge is laid out, for nothing may be read behind it."""
        out, step = self.out, self.product.right.step
        assert step is not None
        kind = self.product.dtype
        out.line(f"const {kind}* panel_at = right_room;")
        out.line(f"i64 panel_step = {self.wide};")
        with out.block():
            self._axes_of("panel_a")
            with out.block(f"if (column_from + {self.wide} <= column_count)", "} else {"):
                out.line(f"panel_at = {self._address('depth_from', 'column_from')};")
                out.line(f"panel_step = {index_text(step)};")
            with out.block("  "):
                out.line(f"{kind}* const to = right_room;")
                self._lay_out()
            out.line("}")

    def _computed(self) -> None:
        """The values of a panel, statement by statement, in vectors along the columns."""
        out, facts, product = self.out, self.facts, self.product
        name = product.right.axes[-1]
        start_at(product.depth, facts.sizes, "depth_from", out)
        with out.block("for (i64 k = 0; k < depth_here; ++k)"):
            if self.lanes == 1:
                with out.block(f"for (i64 {name} = column_from, j = 0; j < {self.wide}; ++{name}, ++j)"):
                    out.line(f"to[k * {self.wide} + j] = {product.dtype}(0);")
                    out.line(f"if ({name} >= column_count) continue;")
                    out.line(f"to[k * {self.wide} + j] = {self._values(None, 1, None)[0]};")
            else:
                self._vectors(name)
            advance(product.depth, facts.sizes, out)

    def _vectors(self, name: str) -> None:
        out, vectors, kind = self.out, self.plan.vectors, self.product.dtype
        lane = self.product.right.axes[-1]
        with out.block(f"if (column_from + {self.wide} <= column_count)", "} else {"):
            out.line(f"const i64 {name} = column_from;")
            for copy, text in enumerate(self._values(lane, vectors, None)):
                out.line(f"store(to + k * {self.wide} + {copy * self.lanes}, {text});")
        steps = f"{name} += {self.lanes}, j += {self.lanes}"
        with out.block(f"  for (i64 {name} = column_from, j = 0; j < {self.wide}; {steps})"):
            out.line(f"store(to + k * {self.wide} + j, fill<typename shape<{kind}>::vec>({kind}(0)));")
            out.line(f"if ({name} >= column_count) continue;")
            out.line(f"const i64 n = index_min({self.lanes}, column_count - {name});")
            out.line(f"store(to + k * {self.wide} + j, {self._values(lane, 1, 'n')[0]});")
        out.line("}")

    def _values(self, lane: str | None, copies: int, tail: str | None) -> list[str]:
        """Text of the operand's values, in the type of the sums."""
        operand, kind = self.product.right.operand, self.product.dtype
        frame = Frame(
            facts=self.facts,
            out=self.out,
            lane=lane,
            lanes=self.lanes,
            copies=copies,
            tail=tail,
            features=self.features,
        )
        for stmt in operand.body:
            frame.emit(stmt)
        texts = [frame.text(operand.value, lane is not None, copy) for copy in range(copies)]
        return texts if operand.dtype.compute is kind else [f"cast<{kind}>({t})" for t in texts]

    def _address(self, depth: str, column: str) -> str:
        """Where the operand is at some step and column; for one that is a plain load."""
        side = self.product.right
        assert side.index is not None
        names = {a: depth if self.facts.sizes[a] != 1 else "0" for a in self.product.depth}
        names[side.axes[-1]] = column
        return f"{side.buffer} + {index_text(side.index, names)}"
