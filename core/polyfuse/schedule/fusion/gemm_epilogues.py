"""What may share a kernel with a GEMM: its epilogue, and no other loop."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse.ir.nodes import Node, Reduction, Scatter
from polyfuse.ir.ops import CONTRACTIONS, GROUP_MODES
from polyfuse.plugin import Backend
from polyfuse.schedule.fusion.units import Unit
from polyfuse.symbolic import IndexLike, bounds


def has_gemm(unit: Unit) -> bool:
    """Whether a unit computes a GEMM as a loop."""
    return bool(_gemms(unit))


def leader(backends: Mapping[str, Backend], first: Unit, second: Unit, epilogues: bool = True) -> Unit | str:
    """The unit whose backend generates both, or why no backend does.

    Units of different backends are not fused, but that of a GEMM, chosen because it is fast, generates what
    it claims of another's.

    Args:
        epilogues: whether a GEMM's kernel may compute anything else.
    """
    gemms = [unit for unit in (first, second) if has_gemm(unit)]
    if gemms and not epilogues:
        return "the option epilogue_fusion is off"
    if len(gemms) == 2:
        return second if _are_paired(backends, first, second) else "each is a GEMM"
    if gemms:
        return _with_epilogue(backends, first, second, gemms[0])
    if first.backend != second.backend:
        return f"different backends generate them, {first.backend} and {second.backend}"
    return first


def _are_paired(backends: Mapping[str, Backend], first: Unit, second: Unit) -> bool:
    """Whether two GEMMs of one operand, as a gate and its projection are, become one kernel, whose epilogue
    reads both (`TargetInfo.paired_gemm_rows`).
    """
    found = [_gemms(unit) for unit in (first, second)]
    if any(len(gemms) != 1 for gemms in found) or first.backend != second.backend:
        return False
    (one,), (other,) = found
    alike = all(getattr(one, name) == getattr(other, name) for name in ("kind", "sizes", "rsizes"))
    if (
        not alike
        or not second.before & first.bits
        or len({*one.values, *other.values}) != len(one.values) + 1
    ):
        return False
    if not all(value.op == "load" and not value.args for value in (*one.values, *other.values)):
        return False
    if any(item.buffer in first.writes for item in other.values):
        return False  # its loop waits for the other's
    most = backends[second.backend].target_info(second.device).paired_gemm_rows
    return len(one.sizes) == 2 and any(_at_most(size, most) for size in one.sizes)


def _at_most(size: IndexLike, most: int) -> bool:
    largest = bounds(size)[1]
    return largest is not None and largest <= most


def _gemms(unit: Unit) -> list[Reduction]:
    nodes = [member.node for member in unit.members]
    return [node for node in nodes if isinstance(node, Reduction) and node.kind in CONTRACTIONS]


def _with_epilogue(backends: Mapping[str, Backend], first: Unit, second: Unit, gemm: Unit) -> Unit | str:
    if (second if gemm is first else first).space.raxes:
        return "a GEMM shares its loop with nothing"
    if gemm is not first or not second.before & gemm.bits:
        return "it is no function of the GEMM"
    if any(_adds_to_memory(member.node) for member in second.members):
        return "results of a GEMM are stored, and not added to memory"
    if second.backend != gemm.backend:
        for member in second.members:
            answer = backends[gemm.backend].claims(member.node)
            if not answer:
                reason = getattr(answer, "reason", "no reason given")
                return f"backend {gemm.backend}, chosen for the GEMM, refuses it: {reason}"
    return gemm


def _adds_to_memory(node: Node) -> bool:
    """Whether a node combines what it computes with what is stored, but for partial results of groups, which
    the kernel of a GEMM combines itself.
    """
    return isinstance(node, Scatter) and node.mode != "set" and node.mode not in GROUP_MODES
