"""Options that scripts written for torch's own compiler pass to `torch.compile(options=...)`: which of ours
do the same, and which have no counterpart.

`COUNTERPARTS` is the table of docs/coming-from-inductor.md too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import torch

from polyfuse.base.log import warn_once
from polyfuse.base.settings import option_infos

Meaning: TypeAlias = Callable[[object], Mapping[str, object] | None]
"""From a value to our options that do the same, none where that is done anyway; None: it is ignored."""


def _ignored(value: object) -> None:
    return None


def _done(value: object) -> Mapping[str, object]:
    """Whatever the value, it is what happens, or changes nothing that a user sees."""
    return {}


def _off(value: object) -> Mapping[str, object] | None:
    """What is not there cannot be turned on."""
    return None if value else {}


def _on(value: object) -> Mapping[str, object] | None:
    """What is always on cannot be turned off."""
    return {} if value else None


def _if_set(**options: object) -> Meaning:
    return lambda value: options if value else {}


def _same(name: str) -> Meaning:
    return lambda value: {name: value}


def _switch(name: str) -> Meaning:
    # a text would be true whatever it says, and is refused as it is
    return lambda value: {name: value if isinstance(value, str) else bool(value)}


@dataclass(frozen=True)
class Counterpart:
    """Options of torch's compiler, and what does the same here.

    Attributes:
        names: of the options.
        ours: names of our options; empty where there is none.
        note: for people.
        meaning: what a value asks for.
        value: shown after the name of ours.
        needed: whether something is missing where there is no counterpart.
    """

    names: tuple[str, ...]
    ours: tuple[str, ...] = ()
    note: str = ""
    meaning: Meaning = _ignored
    value: str = ""
    needed: bool = True

    @property
    def text(self) -> str:
        """Ours, in Markdown."""
        if not self.ours:
            return "none" if self.needed else "none needed"
        return ", ".join(f"`{name}{self.value}`" for name in self.ours)


def _row(names: str, ours: str = "", note: str = "", meaning: Meaning = _ignored, **more: Any) -> Counterpart:
    return Counterpart(tuple(names.split()), tuple(ours.split()), note, meaning, **more)


COUNTERPARTS: Final = (
    _row(
        "max_autotune max_autotune_gemm",
        "gemm",
        'or `mode="max-autotune-no-cudagraphs"`; `max_autotune` turns on `tune_kernels` as well',
        _if_set(gemm="fastest"),
        value='="fastest"',
    ),
    _row(
        "max_autotune_pointwise coordinate_descent_tuning",
        "tune_kernels",
        "neighbours of the best configuration are tried too",
        _if_set(tune_kernels=True),
    ),
    _row(
        "max_autotune_gemm_backends",
        "backends",
        "not taken over: in order, and for all kernels; `autotune_backends` times them per kernel",
    ),
    _row("cpu_backend cuda_backend", "backends", "not taken over"),
    _row(
        "search_autotune_cache",
        "tune_lookup",
        "what is stored is used, nothing is timed",
        _switch("tune_lookup"),
    ),
    _row("max_autotune_gemm_search_space", "tune_candidates", "not taken over"),
    _row("autotune_in_subproc", "tune_in_process", "the worker process is the default here", _done),
    _row("autotune_fallback_to_aten", "gemm", "the library is always a candidate", _done),
    _row("max_autotune_subproc_result_timeout_seconds", "tune_timeout", "not taken over"),
    _row("precompilation_timeout_seconds", "build_timeout", "not taken over"),
    _row(
        "autotune_local_cache",
        "cache",
        "measurements are stored; `polyfuse tune show` lists them",
        _on,
    ),
    _row(
        "benchmark_fusion benchmark_epilogue_fusion", "benchmark_fusion", "", _if_set(benchmark_fusion=True)
    ),
    _row("epilogue_fusion", "epilogue_fusion", "", _switch("epilogue_fusion")),
    _row("epilogue_fusion_first", "epilogue_first", "", _switch("epilogue_first")),
    _row("prologue_fusion", "fusion", "on by default; not turned off by this", _on),
    _row("aggressive_fusion", "aggressive_fusion", "", _switch("aggressive_fusion")),
    _row("max_fusion_size", "max_fusion_size", "", _same("max_fusion_size")),
    _row("score_fusion_memory_threshold"),
    _row(
        "combo_kernels",
        "horizontal_fusion",
        "by default where a launch is costly, and where eight or more are found",
        _switch("horizontal_fusion"),
    ),
    _row("loop_ordering_after_fusion pick_loop_orders", "loop_ordering", "on by default", _on),
    _row("realize_reads_threshold", "max_inlined_reads", "", _same("max_inlined_reads")),
    _row("realize_opcount_threshold", "max_inlined_ops", "", _same("max_inlined_ops")),
    _row(
        "split_reductions",
        note="a backend's target info says whether long reductions are split",
        meaning=_on,
        needed=False,
    ),
    _row(
        "unroll_reductions_threshold",
        note="part of a kernel's configuration",
        meaning=_done,
        needed=False,
    ),
    _row("inplace_buffers", "inplace", "", _switch("inplace")),
    _row("allow_buffer_reuse", "reuse_buffers", "", _switch("reuse_buffers")),
    _row("memory_planning", "memory_pools", "", _switch("memory_pools")),
    _row("memory_pool", "memory_pools", "not taken over"),
    _row(
        "layout_optimization",
        "channels_last",
        "",
        lambda value: {} if value else {"channels_last": "off"},
    ),
    _row("force_layout_optimization", "channels_last", "", _if_set(channels_last="on")),
    _row("freezing", "freezing", "[Freezing](user-guide.md#freezing)", _switch("freezing")),
    _row("freezing_discard_parameters", note="parameters stay where they are", meaning=_off),
    _row("joint_graph_constant_folding", "constant_folding", "", _switch("constant_folding")),
    _row("pattern_matcher", "graph_rewrites", "", _switch("graph_rewrites")),
    _row(
        "post_grad_custom_pre_pass post_grad_custom_post_pass joint_custom_pre_pass joint_custom_post_pass"
        " pre_grad_custom_pass",
        note="the hook `polyfuse_rewrites` of a plugin",
        meaning=_off,
        needed=False,
    ),
    _row("cpp_wrapper", "native_host", "on the CPU", _switch("native_host")),
    _row("graph_partition", "device_graphs", "partitions are made where they are needed", _done),
    _row("triton.cudagraphs", "device_graphs", "", _switch("device_graphs")),
    _row(
        "triton.cudagraph_trees triton.cudagraph_skip_dynamic_graphs triton.cudagraph_support_input_mutation",
        "device_graphs",
        "what cannot be recorded runs without",
        _done,
    ),
    _row(
        "triton.unique_kernel_names triton.descriptive_names cpp.descriptive_names",
        note="kernels are named by what they compute",
        meaning=_done,
        needed=False,
    ),
    _row("triton.persistent_reductions", note="part of a kernel's configuration", meaning=_on, needed=False),
    _row(
        "triton.enable_persistent_tma_matmul", note="a candidate of autotuning", meaning=_done, needed=False
    ),
    _row(
        "cpp.threads",
        note="`torch.set_num_threads` decides",
        meaning=lambda value: {} if value == -1 else None,
    ),
    _row("cpp.simdlen", "cpp.isa", "not taken over: it names an instruction set"),
    _row("size_asserts", "size_asserts", "", _switch("size_asserts")),
    _row("nan_asserts", "nan_asserts", "", _switch("nan_asserts")),
    _row(
        "assert_indirect_indexing", "index_asserts", "raises eager mode's exception", _switch("index_asserts")
    ),
    _row(
        "fallback_random align_random_eager",
        note="random numbers are eager mode's",
        meaning=_done,
        needed=False,
    ),
    _row(
        "emulate_precision_casts",
        "numerics",
        "",
        _if_set(numerics="eager"),
        value='="eager"',
    ),
    _row("use_fast_math", meaning=_off),
    _row(
        "deterministic",
        "deterministic",
        "",
        lambda value: {"deterministic": ("on" if value else "off") if isinstance(value, bool) else value},
    ),
    _row("batch_invariant", meaning=_off),
    _row(
        "implicit_fallbacks",
        "strict",
        "the other way round: `strict=True` forbids fallbacks",
        lambda value: {} if value else {"strict": True},
    ),
    _row("compile_threads", "build_workers", "", _same("build_workers")),
    _row("fx_graph_cache", "graph_cache", "", _switch("graph_cache")),
    _row("fx_graph_remote_cache autotune_remote_cache", "remote_cache", "one address for both", _off),
    _row("force_disable_caches", "cache", "", _if_set(cache=False), value="=False"),
    _row("reorder_for_compute_comm_overlap", "overlap_collectives", "", _switch("overlap_collectives")),
    _row("reorder_for_peak_memory", meaning=_done),
    _row("intra_node_bw inter_node_bw", "network_bandwidth", "not taken over"),
    _row("bucket_all_gathers_fx bucket_reduce_scatters_fx", meaning=_off),
    _row("shape_padding comprehensive_padding", note="inputs of GEMMs keep their layouts", meaning=_off),
    _row("b2b_gemm_pass", meaning=_off),
    _row("profile_bandwidth", "profile", "", _switch("profile")),
    _row("benchmark_harness benchmark_kernel", "benchmark_harness", "", _if_set(benchmark_harness=True)),
    _row("disable_progress verbose_progress", "progress", "", _done),
    _row("trace.enabled debug", "dump", "a folder", _off),
)


@cache
def _by_name() -> Mapping[str, Counterpart]:
    return {name: row for row in COUNTERPARTS for name in row.names}


def translated(options: Mapping[str, object] | None) -> dict[str, object]:
    """Options as given to `torch.compile`, with those of torch's own compiler replaced by ours.

    Those without a counterpart are left out, with one warning that names them; unknown names stay, for others
    to refuse. Where one of ours is given too, it counts.
    """
    own: dict[str, object] = {}
    theirs: dict[str, object] = {}
    ignored: list[str] = []
    for name, value in (options or {}).items():
        row = _by_name().get(name)
        if row is None and (name in option_infos() or name not in inductor_options()):
            own[name] = value
            continue
        found = row.meaning(value) if row is not None else None
        if found is None:
            ignored.append(f"{name}={value!r}")
        elif name in option_infos():
            own.update(found)
        else:
            theirs.update(found)
            if name == "max_autotune":
                theirs.update({"tune_kernels": True} if value else {})
    if ignored:
        warn_once(
            "settings",
            f"options of torch's own compiler that are ignored here: {', '.join(ignored)};"
            " docs/coming-from-inductor.md lists what does the same",
        )
    return {**theirs, **own}


def table() -> str:
    """The counterparts as a table in Markdown."""
    return "\n".join(("| Inductor | Polyfuse | notes |", "|---|---|---|", *_lines()))


def _lines() -> Iterator[str]:
    for row in COUNTERPARTS:
        yield f"| {', '.join(f'`{name}`' for name in row.names)} | {row.text} | {row.note} |".replace(
            "|  |", "| |"
        )


@cache
def inductor_options() -> frozenset[str]:
    """The names of options that torch's own compiler takes, those within a group as `group.name`: read from
    the text of its configuration, without importing it; none where the file cannot be read.
    """
    path = Path(torch.__file__).parent / "_inductor" / "config.py"
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return frozenset()
    groups = {item.name: item for item in tree.body if isinstance(item, ast.ClassDef)}
    grouped = (_of_group(group, f"{name}.", groups) for name, group in groups.items())
    return frozenset(_names(tree.body, "")).union(*grouped)


def _of_group(group: ast.ClassDef, prefix: str, groups: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """The options of a group, with those of the groups that it extends."""
    yield from _names(group.body, prefix)
    for base in group.bases:
        if isinstance(base, ast.Name) and base.id in groups:
            yield from _of_group(groups[base.id], prefix, groups)


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for item in body:
        targets = (
            item.targets
            if isinstance(item, ast.Assign)
            else [item.target]
            if isinstance(item, ast.AnnAssign)
            else []
        )
        yield from (f"{prefix}{target.id}" for target in targets if isinstance(target, ast.Name))
