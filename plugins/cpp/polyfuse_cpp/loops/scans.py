"""Inclusive scans: a running state that is also the result at every step."""

from __future__ import annotations

from dataclasses import dataclass

from polyfuse.base.errors import UnsupportedError
from polyfuse.ir.statements import Scan
from polyfuse.ir.types import DType
from polyfuse.kit import Writer
from polyfuse_cpp.loops.body import Frame
from polyfuse_cpp.loops.ops import scalar_type, vector_type
from polyfuse_cpp.loops.reductions import combine_text, identity

_ACROSS = frozenset((DType.f32, DType.f64, DType.i32, DType.i64))

_MANY = 64
"""Steps from which on few vectors hold a new extreme, unless numbers rise."""


def scans_across(stmt: Scan, steps: int) -> bool:
    """Whether a scan of so many steps can be done on the lanes of one vector, and is better done so."""
    if stmt.kind in ("min", "max"):
        return steps >= _MANY and stmt.dtype in _ACROSS
    return stmt.kind in ("sum", "prod") and stmt.dtype in _ACROSS


@dataclass
class Scanner:
    """The state of one ``scan`` statement: one for each copy, scalar or a vector of independent scans. Where
    lanes run along the axis of the scan (`across`), it is the last result in every lane.
    """

    stmt: Scan
    vector: bool
    copies: int
    across: bool = False

    @property
    def kind(self) -> str:
        """Its kind, of `ops.SCANS`."""
        return self.stmt.kind

    def _type(self) -> str:
        return vector_type(self.stmt.dtype) if self.vector else scalar_type(self.stmt.dtype)

    def _name(self, part: str, copy: int) -> str:
        return f"{part}_{self.stmt.targets[0] or self.stmt.targets[-1]}_{copy}"

    def declare(self, out: Writer) -> None:
        """Before the loop."""
        kind = {"logsumexp": "max"}.get(self.kind, self.kind)
        for copy in range(self.copies):
            start = f"fill<{self._type()}>({identity(kind, self.stmt.dtype)})"
            out.line(f"{self._type()} {self._name('run', copy)} = {start};")
            if len(self.stmt.args) == 2:
                position = "vi64" if self.vector else "i64"
                out.line(f"{position} {self._name('pos', copy)} = fill<{position}>(i64(0));")

    def step(self, frame: Frame) -> None:
        """Take the next values and name the results.

        Raises:
            UnsupportedError: the kind of the scan is unknown.
        """
        out = frame.out
        results: list[list[str]] = []
        for copy in range(self.copies):
            run = self._name("run", copy)
            value = frame.text(self.stmt.args[0], self.vector, copy)
            if self.across and len(self.stmt.args) == 2:
                results.append(self._extremes(frame, copy))
            elif self.across:
                frame.features.add("scan")
                last = f"at_{run}"
                new = combine_text(self.kind, run, f"running_{self.kind}({value})")
                out.line(f"const auto {last} = {new};")
                out.line(f"{run} = last_lane({last});")
                results.append([last])
            elif self.kind in ("sum", "prod"):
                out.line(f"{run} = {combine_text(self.kind, run, value)};")
                results.append([run])
            elif self.kind == "logsumexp":
                frame.features.update(("block_reduce", f"math_{self.stmt.dtype}"))
                out.line(f"{run} = log_add({run}, {value});")
                results.append([run])
            elif self.kind in ("min", "max"):
                frame.features.add("block_reduce")
                position, at = self._name("pos", copy), frame.text(self.stmt.args[1], self.vector, copy)
                out.line(f"later_{self.kind}({run}, {position}, {value}, {at});")
                results.append([run, position])
            else:
                raise UnsupportedError(
                    f"the scan {self.kind} is unknown", "add it to the code generator's table"
                )
        frame.bind_results(self.stmt.targets, results, self.vector)

    def _extremes(self, frame: Frame, copy: int) -> list[str]:
        """The extremes so far of the lanes of one vector, and their positions."""
        frame.features.add("extremes")
        run, position = self._name("run", copy), self._name("pos", copy)
        value, at = (frame.text(a, True, copy) for a in self.stmt.args)
        frame.out.line(f"{self._type()} at_{run};")
        frame.out.line(f"vi64 at_{position};")
        passed = f"{run}, {position}, {value}, {at}, at_{run}, at_{position}"
        frame.out.line(f"running_{self.kind}({passed});")
        return [f"at_{run}", f"at_{position}"]
