"""What scheduling gives: ordered launches and calls, lifetimes, and every decision with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polyfuse.base.config import Config
    from polyfuse.cache.timings import Candidate, Trial
    from polyfuse.ir.graph import Graph
    from polyfuse.ir.kernel import Kernel
    from polyfuse.ir.nodes import ExternCall, Node
    from polyfuse.symbolic import IndexLike

Unfused = tuple[frozenset[str], frozenset[str]]
"""Names of nodes, such that none of the first and none of the second share a kernel."""


@dataclass(frozen=True)
class Decision:
    """One decision.

    Attributes:
        kind: ``"split"`` (reduction in two), ``"fuse"``, ``"refuse"``, ``"remove"`` (dead node), ``"local"``
            (buffer local to a kernel), ``"inplace"``, ``"unaliased"`` (a generator refused that),
            ``"group"`` (launches from one name to another that become parts of one kernel),
            ``"repeat"`` (the steps from one name to another are taken again by layers that are not shown),
            ``"in_place_output"`` (a call writes into a slice of a larger tensor),
            ``"accumulate"`` (a call adds its matmul to a term of the sum), ``"overlap"`` (a collective and
            its wait), ``"chunk"`` (a collective and the matmuls beside it, in chunks), ``"backend"``,
            ``"library"`` (an operator that is called because eager mode's kernel is faster); of autotuning,
            ``"choice"`` and ``"tune"`` (what is used), ``"declined"`` (what was not timed).
        first, second: names of the nodes or buffers concerned.
        reason: why, in words.
    """

    kind: str
    first: str
    second: str
    reason: str


@dataclass(frozen=True)
class TuningDecision:
    """What autotuning decided.

    Attributes:
        subject: the kernel, call or fusion it is about, for people.
        candidate: the one to use.
        trials: what was measured.
        reason: why, in words.
    """

    subject: str
    candidate: Candidate
    trials: tuple[Trial, ...] = ()
    reason: str = ""

    def row(self, kind: str) -> Decision:
        """The same among the decisions of a schedule."""
        return Decision(kind, self.subject, str(self.candidate), self.reason)


@dataclass(frozen=True)
class Launch:
    """One generated kernel and what it is launched with.

    Attributes:
        name: unique in the schedule.
        kernel: what to run; equal kernels may be launched by several steps.
        operands: a buffer name, or a size expression, per kernel argument.
        nodes: the graph nodes it computes.
        backend: name of the backend that claimed it first.
        reads, writes: buffers, each once.
        inplace: (output, dying input) pairs where the output reuses the input's storage.
        alignment: bytes of which the addresses are multiples that the kernel takes to be aligned.
        merges: the nodes that were merged, pair by pair, the last pair last; empty: it is one node.
        choice: the backend and the configuration that autotuning decided for; None: it was not asked.
    """

    name: str
    kernel: Kernel
    operands: tuple[str | IndexLike, ...]
    nodes: tuple[Node, ...]
    backend: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    inplace: tuple[tuple[str, str], ...] = ()
    alignment: int = 0
    merges: tuple[Unfused, ...] = ()
    choice: TuningDecision | None = None

    @property
    def config(self) -> Config | None:
        """In which configuration the kernel is generated; None: as its backend likes best."""
        return None if self.choice is None else self.choice.candidate.config


@dataclass(frozen=True)
class Call:
    """One extern call.

    Attributes:
        choice: why it is done so, where autotuning decided that.
    """

    node: ExternCall
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    choice: TuningDecision | None = None


@dataclass(frozen=True)
class Schedule:
    """The ordered program of a graph.

    Attributes:
        graph: what was scheduled.
        steps: final order.
        removed: buffers that live only inside one kernel and get no memory.
        last_use: per step, buffers whose storage is dead after it (aliases considered; never a graph
            output's).
        decisions: every decision, in the order taken.
        copies: the steps of equal layers, by name: the step that each is like but for names.
    """

    graph: Graph
    steps: tuple[Launch | Call, ...]
    removed: tuple[str, ...]
    last_use: tuple[tuple[str, ...], ...]
    decisions: tuple[Decision, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
