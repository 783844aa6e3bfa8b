"""What Dynamo says of the frames that it compiled: breaks, recompilations and seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Frame:
    """One compile of one function.

    Attributes:
        compile_id: such as `0/1`, the second compile of the first function.
        function, file, line: what was compiled.
        seconds: all of it, the backend included.
        recompiled: the guard that failed, if the function was compiled before; else empty.
        failed: why it runs in eager mode; else empty.
    """

    compile_id: str
    function: str
    file: str
    line: int
    seconds: float
    recompiled: str
    failed: str


@dataclass(frozen=True)
class Break:
    """Why a graph ends before its function does.

    Attributes:
        reason: Dynamo's words.
        file, line: of the user's source; line 0: not known.
    """

    reason: str
    file: str
    line: int


def keep_frames(most: int) -> None:
    """Have Dynamo remember so many compiles, from now on."""
    from torch._dynamo import utils

    utils.clear_compilation_metrics()
    utils.set_compilation_metrics_limit(most)


def compiled_frames() -> list[Frame]:
    """The compiles that Dynamo remembers, oldest first."""
    from torch._dynamo import utils

    return [_frame(item) for item in utils.get_compilation_metrics() if item.co_name]


def _frame(item: Any) -> Frame:
    failed = f"{item.fail_type or ''}: {item.fail_reason or ''}".strip(": ")
    return Frame(
        str(item.compile_id or ""),
        str(item.co_name),
        str(item.co_filename or ""),
        int(item.co_firstlineno or 0),
        float(item.entire_frame_compile_time_s or 0.0),
        str(item.recompile_reason or ""),
        failed,
    )


def break_after(gm: Any) -> Break | None:
    """The graph break that ends a captured graph; None where the function ends with it."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    if reason is None or not reason.graph_break:
        return None
    stack = list(reason.user_stack or ())
    last = stack[-1] if stack else None
    return Break(str(reason.reason), last.filename if last else "", (last.lineno or 0) if last else 0)


def without_compile(fn: Any) -> Any:
    """The function or module that was given to `torch.compile`; anything else as it is."""
    inner = getattr(fn, "_orig_mod", None)
    if inner is not None:
        return inner
    return getattr(fn, "_torchdynamo_orig_callable", fn)


def is_compiled(module: Any) -> bool:
    """Whether calling a module calls what `torch.compile` made of it."""
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None
