"""Every option. The only module that reads the environment.

An option is a field of `Settings`. It can be set, later ones winning, by

1. its default,
2. its environment variable, `POLYFUSE_` and the name in capitals,
3. the mode given to `torch.compile(mode=...)`,
4. `torch.compile(options={...})`.

A plugin's own options are written `"plugin.option"`, or `POLYFUSE_PLUGIN__OPTION` in the environment, and are
declared in the plugin's manifest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from polyfuse.base.digest import digest, stable_json
from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.log import warn_once
from polyfuse.base.options import PREFIX, OptionInfo, info_of, neutral, option, parse_text, unknown, validate
from polyfuse.base.text import join_words

_TUNED: Mapping[str, object] = {"tune_kernels": True, "autotune_backends": True, "gemm": "fastest"}

# The names that `torch.compile` knows.
MODES: Mapping[str, Mapping[str, object]] = {
    "default": {},
    "reduce-overhead": {"device_graphs": True},
    "max-autotune": {"device_graphs": True, **_TUNED},
    "max-autotune-no-cudagraphs": _TUNED,
}


@dataclass(frozen=True)
class Settings:
    """The options of one compilation. Frozen: made once by `Settings.resolve`, then passed along."""

    # Which code generators.
    backends: tuple[str, ...] = option(
        (),
        "Names of backends in the order in which they are asked; empty: every installed one, by its "
        "priority for the device.",
    )
    disable: tuple[str, ...] = option(
        (), "Names of backends that must not be used, even when named elsewhere."
    )
    hook_timeout: int = neutral(
        60,
        "Seconds after which the answer of a plugin to a hook is given up, and the plugin left out. Hooks "
        "run in threads of their own for that. 0: in the thread that calls them, for as long as they do.",
        minimum=0,
    )
    strict: bool = option(
        False,
        "Raise instead of falling back: where the first backend for a device is unusable or fails, a "
        "kernel would be interpreted although nobody asked for it, or an operator or graph would run in "
        "eager mode because it cannot be compiled. Library calls by design, views, users' operators and "
        "`force_fallback` are no fallbacks.",
    )
    force_fallback: tuple[str, ...] = option(
        (),
        "Operators that run in eager mode, as `aten.gelu` or `aten.gelu.default`. An unknown name is "
        "warned about.",
    )

    # Numerics.
    numerics: str = option(
        "fast",
        "`fast`: results within the tolerance users know from eager mode. `eager`: every rounding of "
        "eager mode is preserved.",
        choices=("fast", "eager"),
    )
    deterministic: str = option(
        "auto",
        "`on`: equal results in every run; values that are scattered to one element are stored in order. "
        "`auto`: as `torch.use_deterministic_algorithms` says while a graph is compiled.",
        choices=("auto", "on", "off"),
    )

    # Graph rewrites.
    constant_folding: bool = option(
        True, "Compute at compile time what depends on constants of the graph alone."
    )
    graph_rewrites: bool = option(
        True, "Rewrite known patterns of operators, such as attention, to better ones."
    )

    channels_last: str = option(
        "auto",
        "Store the operands and results of convolutions with the channels last in memory. `auto`: in "
        "the types for which the device's backend reports that its libraries are faster so, and in graphs "
        "with gradients if they want weights so, too; not for one light convolution alone on the CPU.",
        choices=("auto", "on", "off"),
    )

    repeated_layers: str = option(
        "auto",
        "Compile layers that are equal but for their parameters once, where a graph repeats them six times "
        "or more, and call the result for each: nothing is fused across their borders. `auto`: on the CPU, "
        "in graphs with gradients, where a layer's tensors take 256 kilobytes. `off`: not even planned once.",
        choices=("auto", "on", "off"),
    )

    size_classes: bool = option(
        True,
        "Generate a program for each class of dynamic sizes, when such sizes are first met: ranges at whose "
        "borders the choices of code generators change. Off: one program, made for the sizes that are met "
        "first, serves all.",
    )
    sizes: tuple[int, ...] = option(
        (),
        "Dynamic sizes for whose classes programs are generated at once, not when they are first met.",
        minimum=0,
    )

    # Fusion.
    fusion: bool = option(True, "Compute several operations in one kernel.")
    disable_fusion_rules: tuple[str, ...] = option(
        (), "Names of plugins' fusion rules not asked, `rule` or `plugin.rule`; `polyfuse explain` has them."
    )
    max_fusion_size: int = option(
        64, "Largest number of nodes of the loop representation in one kernel.", minimum=1
    )
    max_horizontal_distance: int = option(
        64,
        "Largest distance, in steps of the schedule, between two kernels that share no data and are fused.",
        minimum=0,
    )
    aggressive_fusion: bool = option(
        False, "Fuse even where no memory traffic is saved, to have fewer kernels."
    )
    epilogue_fusion: bool = option(
        True,
        "Compute what follows a matmul or convolution in its kernel, where a backend generates that kernel.",
    )
    epilogue_first: bool = option(
        True,
        "Of the fusions that are possible, try those of matmuls with what follows them first; off: last.",
    )
    fusion_candidates: int = option(
        12,
        "Each kernel is tried for fusion with so many of those that follow it and touch the same tensor. "
        "0: with all of them, which takes longer in graphs where many kernels read one tensor.",
        minimum=0,
    )
    horizontal_fusion: bool = option(
        False,
        "Launch kernels together that depend on none of each other, such as the entries of a list operator: "
        "those of equal size share their loops, others are parts of one kernel. Off: where a launch is "
        "costly, and where eight or more are found.",
    )
    loop_ordering: bool = option(
        True, "Reorder the loops of a kernel for contiguous access, and to fuse more."
    )
    max_inlined_reads: int = option(
        8,
        "A value computed from more reads than this is stored before it is used twice.",
        minimum=1,
    )
    max_inlined_ops: int = option(
        64,
        "A value computed with more operations than this is stored before it is used twice.",
        minimum=1,
    )

    freezing: bool = option(
        False,
        "In graphs without gradients, compute what depends on parameters and buffers alone once, and fold "
        "the scaling of channels after a convolution into its weights. It is computed again after a "
        "parameter was written to, other than through `.data`.",
    )

    # Memory.
    reuse_buffers: bool = option(
        True,
        "Give the memory of an intermediate tensor that is no longer needed to a later one.",
    )
    memory_pools: bool = option(
        False,
        "Allocate the intermediate tensors of a graph without gradients in one block for each device: "
        "fewer allocations, and memory is reused whatever the sizes, but the block is held until the last "
        "of them is no longer needed.",
    )
    keep_memory: bool = option(
        True,
        "Keep the memory of large intermediate tensors of graphs without gradients on the CPU from call to "
        "call, one block for all graphs of a thread: fresh memory costs a fault for each page.",
    )
    inplace: bool = option(True, "Let a kernel write its result over an input that nothing needs afterwards.")

    # Launching.
    native_host: bool = option(
        False,
        "Run the host program as compiled code, where all is on the CPU: less time for many small kernels.",
    )
    launch_series: bool = option(True, "Launch eight and more consecutive kernels and matmuls in one call.")
    device_graphs: bool = option(
        False,
        "Capture the launches of a compiled graph and replay them, where its device can do that (CUDA "
        'graphs). `mode="reduce-overhead"` and `mode="max-autotune"` turn it on.',
    )
    max_device_graphs: int = option(
        32,
        "Number of different sizes of a graph's inputs that are captured as device graphs; calls with "
        "other sizes launch kernel by kernel.",
        minimum=1,
    )

    # Communication.
    overlap_collectives: bool = option(
        True,
        "Start functional collectives early and wait for them late, with other work in between, as far as "
        "dependencies and `overlap_memory` allow, in graphs where estimates say that this gains; off: in the "
        "order of the program.",
    )
    overlap_memory: int = option(
        20,
        "Additional memory, in percent, that a graph may use to overlap collectives.",
        minimum=0,
    )
    bucket_collectives: int = option(
        4,
        "Megabytes up to which functional collectives of one kind, type and group become one message: "
        "all-gathers where the first one starts, others where the last one does. 0: none are. All ranks need "
        "the same.",
        minimum=0,
    )
    chunk_collectives: str = option(
        "auto",
        "Number of chunks of a matmul and an all-gather before it, or a sum over ranks behind it: chunks are "
        "multiplied while others are sent. `auto`: on devices with processors of their own, as many as "
        "measured costs of collectives (`polyfuse collectives`) or `network_bandwidth` say that it gains by, "
        "else one. All ranks need the same.",
        choices=("auto", "off", "2", "4", "8"),
    )
    symmetric_memory: str = option(
        "sums",
        "What goes through memory that the GPUs of a host map of each other: all-reduces of 16-bit numbers, "
        "of up to 64 MiB between two ranks and of up to 512 KiB between more, in groups for which the "
        "program enabled that (`sums`), or in all groups of NCCL whose ranks torch's launcher started on one "
        "host (`host`; all ranks must run compiled at the same calls); or nothing.",
        choices=("off", "sums", "host"),
    )
    network_bandwidth: int = option(
        0,
        "Megabytes per second between processes, from which the time of collectives is estimated; 0: what "
        "the device says, within a host where a whole group is on one, else between hosts.",
        minimum=0,
    )

    agreement_seconds: int = neutral(
        2,
        "Before a graph with collectives runs for the first time, the ranks of its groups compare their "
        "collectives, options and versions, and a difference is an error. A rank that compiles is waited "
        "for, any other one for so many seconds. 0: nothing is compared.",
        minimum=0,
    )

    # Tuning.
    gemm: str = option(
        "known",
        "What computes matmuls and convolutions. `library`: what torch calls. `known`: the same, except "
        "where a plugin knows something faster for this machine, without timing. `fastest`: autotuning on "
        "this machine between the libraries and what backends generate, with what they fuse into it; "
        'results are stored. `generated`: the first backend that can. `mode="max-autotune"` selects '
        "`fastest`.",
        choices=("library", "known", "fastest", "generated"),
    )
    tune_kernels: bool = option(
        False,
        "Build each kernel in several configurations, time them on this machine, and use the fastest; "
        "measurements are stored.",
    )
    autotune_backends: bool = option(
        False,
        "Time each kernel with all backends that can generate it, and use the fastest; measurements are "
        'stored. `mode="max-autotune"` turns it on.',
    )
    benchmark_fusion: bool = option(
        False,
        "Time each fused kernel against the kernels that were merged to it, each merge from the last one "
        "on. They are not fused where that is faster. Measurements are stored.",
    )
    tune_seconds: int = neutral(
        10,
        "Seconds after which the search for a kernel's configuration starts no further round.",
        minimum=0,
    )
    max_autotune_seconds: int = neutral(
        0,
        "Seconds that autotuning may take in all; what was not timed by then is compiled as without "
        "autotuning. 0: no limit.",
        minimum=0,
    )
    tune_candidates: int = neutral(
        24,
        "Largest number of configurations of one kernel that are built in the first round, chosen by the "
        "backend's estimates.",
        minimum=1,
    )
    tune_cost_model: bool = neutral(
        True,
        "Learn a cost model from stored measurements, and build fewer configurations where it is sure "
        "enough.",
    )
    tune_timeout: int = neutral(
        30, "Seconds after which the trial of a candidate is given up; the candidate is not used.", minimum=1
    )
    tune_verify: str = neutral(
        "off",
        "Compare the results of each candidate with those of the first, which is the library's where "
        "there is one. `drop`: a candidate that differs by more than the tolerance is not used. `raise`: it "
        "is an error that names it.",
        choices=("off", "drop", "raise"),
    )
    tune_tolerances: tuple[str, ...] = neutral(
        (),
        "Tolerances of `tune_verify` by operator, relative to the largest result, as `aten.mm=0.01`; for "
        "others, the narrowest type decides.",
    )
    tune_in_process: bool = neutral(
        False,
        "Time candidates in this process, where a debugger reaches them, instead of in a benchmark "
        "worker, whose crash does no harm.",
    )
    tune_lookup: bool = neutral(
        False,
        "Use measurements that are stored, here or in `remote_cache`, and measure nothing: what was not "
        "measured is compiled as without autotuning.",
    )
    tune_log: str = neutral(
        "", "File to which each search appends a line of JSON with its measurements; empty: none is written."
    )
    kernel_names: str = neutral(
        "aten",
        "After what kernels are called: `aten` operators, nodes of the captured `graph`, or `plain` kinds.",
        choices=("aten", "graph", "plain"),
    )
    progress: str = neutral(
        "auto",
        "Show on standard error how far a compile of more than two seconds is: stage, kernels built, trials "
        "of autotuning, time left. `auto`: where that is a terminal, and in notebooks; elsewhere the log has "
        "a line at level info.",
        choices=("auto", "on", "off"),
    )

    # Building.
    build_workers: int = neutral(0, "Compilers that run at once; 0: one for each available CPU.", minimum=0)
    build_timeout: int = neutral(
        600,
        "Seconds after which a build, or waiting for another process that builds, is given up.",
        minimum=1,
    )

    # Caches.
    cache: bool = neutral(True, "Store compiled graphs, kernels and measurements on disk and reuse them.")
    graph_cache: bool = neutral(
        True,
        "Store compiled graphs, with what AOTAutograd traced, on disk: a later process that compiles the "
        "same graph reads them instead of compiling. A graph with gradients is stored once its backward "
        "has run.",
    )
    capture_cache: bool = neutral(
        False,
        "Store also what Dynamo makes of each function, so that a later process that compiles the same "
        "function of the same sources traces nothing. See docs/caching.md for what is not stored.",
    )
    cache_dir: str = neutral("", "Folder of the caches; empty: the user's cache folder on this platform.")
    remote_cache: str = neutral(
        "",
        "A store that several machines share: an http or https address that answers GET and PUT, a server of "
        "Redis (`redis://user:password@host:6379/0?ttl=604800`, or `rediss://` over TLS), a folder, what "
        "fsspec knows (`s3://bucket/folder`, `gs://bucket/folder`), or `module:function`, which returns an "
        "object with `get` and `put`. Kernels, compiled graphs and measurements of autotuning that are not "
        "in the cache folder are looked up there, and new ones are sent there. Kernels and graphs are code, "
        "and are run.",
    )
    remote_lookup: bool = neutral(
        False, "Only look things up in `remote_cache`, and send nothing there, as for serving in production."
    )
    remote_key: str = neutral(
        "",
        "A file with a secret that the machines of a `remote_cache` share. What they exchange is sealed "
        "with it, and anything else is refused. Without it, kernels are exchanged and compiled graphs, "
        "which are pickles, are not.",
    )
    rank_exchange: int = neutral(
        256,
        "Mebibytes that the ranks of a distributed program give each other of what they compile, through the "
        "store of their process group, where they do not see one cache folder. 0: each folder's compile.",
        minimum=0,
    )
    cache_limit: int = neutral(
        16384,
        "Mebibytes of kernels and compiled graphs in the cache folder above which the least recently used "
        "are removed, except those used within the last five minutes. 0: no limit.",
        minimum=0,
    )

    # Checks.
    verify: int = neutral(
        0,
        "0: none; 1: verify the intermediate representation between stages; 2: also after every rewrite.",
        choices=(0, 1, 2),
    )
    check: str = neutral(
        "off",
        "Compare kernels with the interpreter, on copies of their operands. `first`: the first launch of "
        "each, whose result is stored; `all`: every launch. A kernel that differs is barred and replaced. "
        "Winners of autotuning are checked at their first launch, whatever this option says.",
        choices=("off", "first", "all"),
    )
    size_asserts: bool = option(
        True,
        "Check the sizes and strides of inputs (of parameters at the first call only) and of what eager "
        "operators return.",
    )
    nan_asserts: bool = option(
        False,
        "Raise where an input or a result of a kernel or operator holds NaN or infinity.",
    )
    index_asserts: bool = option(
        True,
        "Raise where an index read from data (`x[i]`, `gather`, `scatter`, embeddings, labels) is out of "
        "range, or a divisor of integers is zero on the CPU, as eager mode does. Otherwise the nearest "
        "element is read, nothing is written, and the quotient is any number.",
    )
    fuel: int | None = option(
        None,
        "Allow only the first so many rewrites and fusions of each graph, to find the one that is wrong.",
        minimum=0,
    )

    # Watching.
    dump: str = neutral("", "Folder to which the text of every stage is written; empty: none.")
    metric_tables: str = neutral(
        "",
        "Folder in which `graphs.csv`, `kernels.csv` and `trials.csv` get a few lines with each graph that "
        "is compiled; empty: none.",
    )
    log: str = neutral("", "Log levels, for example `info` or `schedule=debug,cache=info`.")
    observe: bool = option(
        False, "Show the results of kernels and library calls to what `polyfuse.observing` registers."
    )
    debug_sync: bool = option(
        False,
        "Wait for the device after every launch, so that an error shows at its cause.",
    )
    profile: bool = option(
        False,
        "Mark every kernel for torch's profiler, and print time and memory bandwidth of each, and of library "
        "calls, when the process ends; the first launch of each is listed apart.",
    )
    benchmark_harness: bool = neutral(
        False, "Make each dumped program a script that times itself, with its kernels, on random inputs."
    )

    # Options of plugins, as sorted pairs ("plugin.option", value).
    plugin_options: tuple[tuple[str, object], ...] = option(
        (),
        "Options of plugins, written `plugin.option`; each plugin's manifest declares its own.",
    )

    @staticmethod
    def resolve(mode: str | None = None, options: Mapping[str, object] | None = None) -> Settings:
        """Return the settings for a mode and options as given to `torch.compile`, and for the environment.

        Raises `InvalidOptionError` for an unknown mode or option and for a value that an option cannot take;
        the message names the nearest known ones. An unknown variable of the environment is only warned about:
        it may belong to another version.
        """
        values = _from_environment()
        if mode is not None and mode not in MODES:
            raise InvalidOptionError(f"mode {mode!r} is unknown", f"use {join_words(list(MODES), 'or')}")
        values.update({} if mode is None else MODES[mode])
        known = option_infos()
        extra = dict(cast("tuple[tuple[str, object], ...]", values.get("plugin_options", ())))
        for name, value in (options or {}).items():
            if "." in name:
                extra[name] = value
            elif name == "plugin_options" or name not in known:
                raise unknown(f"option {name!r}", name, known.keys() - {"plugin_options"})
            else:
                values[name] = validate(known[name], value, f"option {name!r}")
        values["plugin_options"] = tuple(sorted(extra.items()))
        return Settings(**cast("dict[str, Any]", values))

    @property
    def autotunes(self) -> bool:
        """Whether autotuning is on."""
        return self.tune_kernels or self.autotune_backends or self.gemm == "fastest"

    def with_options(self, **options: object) -> Settings:
        """Return a copy with some options changed, checked like those given to `resolve`."""
        known = option_infos()
        for name in options:
            if name not in known:
                raise unknown(f"option {name!r}", name, known.keys() - {"plugin_options"})
        checked = {name: validate(known[name], value, f"option {name!r}") for name, value in options.items()}
        return replace(self, **cast("dict[str, Any]", checked))

    def plugin_option(self, plugin: str, name: str, default: object = None) -> object:
        """Return the value given for a plugin's own option, or `default`.

        Values from the environment are text; `polyfuse.base.options.parse_text` turns them into other types.
        """
        wanted = f"{plugin}.{name}"
        for key, value in self.plugin_options:
            if key == wanted:
                return value
        return default

    def fingerprint(self) -> str:
        """Return the address of all options that change what is compiled; part of graph cache keys."""
        return digest(stable_json(self.affecting_code()))

    def affecting_code(self) -> dict[str, object]:
        """Return all options that change what is compiled, by name."""
        chosen = {
            info.name: getattr(self, info.name) for info in option_infos().values() if info.affects_code
        }
        return {**chosen, "plugin_options": [[name, str(value)] for name, value in self.plugin_options]}

    def build_worker_count(self) -> int:
        """Return how many builds may run at once on this machine."""
        try:
            return self.build_workers or max(1, len(os.sched_getaffinity(0)))
        except AttributeError:  # not every system has it
            return max(1, os.cpu_count() or 1)

    def dump_folder(self) -> Path | None:
        """Return the folder for dumped stages, or None."""
        return Path(self.dump).expanduser() if self.dump else None


@cache
def option_infos() -> Mapping[str, OptionInfo]:
    """Return the description of every option by its name, in the order of the documentation."""
    return {item.name: info_of(item) for item in fields(Settings)}


def environment(name: str, default: str = "") -> str:
    """Return one variable of the environment. Code generators look up the likes of `CXX` through this."""
    return os.environ.get(name, default)


def child_environment(**changes: str) -> dict[str, str]:
    """Return a copy of the environment, with changes, for a process that is about to be started."""
    return {**os.environ, **changes}


def set_environment(**changes: str) -> None:
    """Set variables for this process and those that it starts, for commands that run a user's program."""
    os.environ.update(changes)


@contextmanager
def changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set variables meanwhile, for this process and those that it starts."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, text in before.items():
            if text is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = text


def _from_environment() -> dict[str, object]:
    known = {info.variable: info for info in option_infos().values() if info.name != "plugin_options"}
    values: dict[str, object] = {}
    extra: dict[str, object] = {}
    for variable in sorted(os.environ):
        if not variable.startswith(PREFIX):
            continue
        text = os.environ[variable]
        if variable in known:
            info = known[variable]
            values[info.name] = validate(info, parse_text(info, text, variable), variable)
        elif "__" in variable:
            plugin, _, own = variable.removeprefix(PREFIX).lower().partition("__")
            extra[f"{plugin}.{own}"] = text
        else:
            warn_once("settings", str(unknown(f"environment variable {variable}", variable, known)))
    if extra:
        values["plugin_options"] = tuple(sorted(extra.items()))
    return values
