"""Frames on their way to Dynamo: seen before they are traced, and what Dynamo made of them afterwards."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from inspect import getclosurevars, signature
from itertools import count
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeAlias

from polyfuse.torch_compat.captures.buckets import Stitched, limits, stitched
from polyfuse.torch_compat.captures.code_objects import dumped, loaded, mentions, renamed
from polyfuse.torch_compat.captures.conversions import watch_conversions
from polyfuse.torch_compat.captures.guards import (
    Compared,
    Describe,
    GuardsDiffer,
    NotingBuilder,
    Unstorable,
    rebuilt,
    recorded,
    text_of,
)
from polyfuse.torch_compat.captures.shortcuts import shortcuts


@dataclass(frozen=True)
class TracedFrame:
    """What Dynamo made of a frame that has one graph, or none and goes on in other functions.

    Attributes:
        guards: under which it holds, as `guards.recorded` gives them.
        program: the marshalled code that runs instead of the frame's.
        graph: the global variable in which that code finds the compiled graph; empty: there is none.
        stitched: what calls the buckets of that graph; None: it was not cut into any.
        resumes: functions for what follows graph breaks, by the global variables in which that code finds
            them: the module of whose globals they are, empty for the frame's own, and their marshalled code.
        imports: modules, and functions and classes of modules, by the global variables in which code and
            guards find them: the name of the module, and theirs there.
        builtins: the global variable in which guards find Python's builtins; empty: in none.
        files: those of everything that was traced.
        names: all that the traced code mentions.
    """

    guards: bytes
    program: bytes
    graph: str
    stitched: Stitched | None
    resumes: Mapping[str, tuple[str, bytes]]
    imports: Mapping[str, tuple[str, str]]
    builtins: str
    files: frozenset[str]
    names: frozenset[str]


class Frame:
    """One frame that is about to be traced.

    Attributes:
        code, f_locals, f_globals: as Python has them.
        mode, options, dynamic: as given to `torch.compile`.
        whole: whether it must become one graph.
        buckets: how large those are into which its graph is cut, as text; empty: it is not.
    """

    def __init__(self, arguments: Mapping[str, Any], compiler: Any, buckets: str = "") -> None:
        self.code: CodeType = arguments["code"]
        self.f_locals: dict[str, Any] = arguments["locals"]
        self.f_globals: dict[str, Any] = arguments["globals"]
        self.mode: str | None = compiler.kwargs.get("mode")
        self.options: Mapping[str, Any] | None = compiler.kwargs.get("options")
        self.dynamic: bool | None = compiler.dynamic
        self.whole: bool = arguments["one_graph"]
        self.buckets = buckets
        self._fail = arguments["hooks"].guard_fail_fn
        self._id = arguments["compile_id"]
        self._traced: list[TracedFrame | str] = []
        self._compared = Compared()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Note what Dynamo makes of the frame while it traces it inside."""
        token = _CURRENT.set(self)
        try:
            yield
        finally:
            _CURRENT.reset(token)

    def note(self, manager: Any, graph: Any) -> None:
        """Record guards that Dynamo has just built."""
        self._compared = manager.taken()
        try:
            self._traced.append(_traced(manager, graph))
        except Unstorable as error:
            self._traced.append(str(error))

    def traced(self, result: Any) -> TracedFrame:
        """What Dynamo made of it.

        Args:
            result: what Dynamo returned.

        Raises:
            Unstorable: it cannot be used again.
        """
        if result.guarded_code is None or len(self._traced) != 1:
            raise Unstorable("Dynamo leaves the frame to Python, or traced more than one")
        found = self._traced[0]
        if isinstance(found, str):
            raise Unstorable(found)
        code = result.guarded_code.code
        if found.graph and not mentions(code, found.graph):
            raise Unstorable("its code does not call its graph")
        return TracedFrame(**{**vars(found), "program": dumped(code, self.f_globals)})

    def said(self, result: Any, describe: Describe) -> str:
        """What the guards say that Dynamo built when it traced the frame."""
        compared, self._compared = self._compared, Compared()
        return text_of(result.guarded_code.guard_manager, compared, describe)

    def guards_on(self, traced: TracedFrame, describe: Describe) -> tuple[Any, str]:
        """The guards of an earlier trace on the values of this frame, and what they say.

        Raises:
            Exception: the frame lacks something, or one of them fails.
        """
        from torch._dynamo.output_graph import get_builtins_dict

        for name, reference in traced.imports.items():
            value = _imported(*reference)
            if self.f_globals.setdefault(name, value) is not value:
                raise GuardsDiffer(f"{name} is taken")
        if traced.builtins:
            found = get_builtins_dict(self.f_globals)
            if traced.builtins not in self.f_globals:
                _reserve_name(traced.builtins)
            if self.f_globals.setdefault(traced.builtins, found) is not found:
                raise GuardsDiffer(f"{traced.builtins} is taken")
        return rebuilt(traced.guards, self.code, self.f_locals, self.f_globals, describe, self._fail)

    def replaced(self, traced: TracedFrame, guards: Any, graph: Callable[..., Any] | None) -> Any:
        """What Dynamo would have returned, from an earlier trace.

        Args:
            guards: of that trace, on the values of this frame.
            graph: its compiled graph, if it has one, with what calls its buckets.
        """
        from torch._dynamo import convert_frame, utils
        from torch._dynamo.types import GuardedCode, wrap_guarded_code

        made = {name: self._resume(name, *stored) for name, stored in traced.resumes.items()}
        if graph is not None:
            made[traced.graph] = graph
        # the same trace may serve several frames of one module
        new = {name: f"{name}_{next(_NUMBERS)}" for name in made}
        code = renamed(loaded(traced.program, self.f_globals), new)
        convert_frame.orig_code_map[code] = self.code
        convert_frame.output_codes.add(code)
        hooks = [utils.CleanupHook.create(self.f_globals, new[name], value) for name, value in made.items()]
        utils.CleanupManager.instance[code] = hooks
        label = f"Torch-Compiled Region: {self._id}"
        return wrap_guarded_code(GuardedCode(code, guards, self._id, label))

    def _resume(self, name: str, module: str, program: bytes) -> Callable[..., Any]:
        """What Dynamo defines for what follows a graph break: a function, or what makes one of a closure."""
        scope = vars(import_module(module)) if module else self.f_globals
        code = loaded(program, scope)
        make = partial(FunctionType, code, scope, name)  # no function of Python's: Dynamo would trace it
        return partial(make, None) if code.co_freevars else make()


Around: TypeAlias = Callable[[Frame, Callable[[], Any]], Any]
"""From a frame, and what has Dynamo trace it, to what Dynamo returned or would have returned."""

_CURRENT: ContextVar[Frame | None] = ContextVar("polyfuse_frame", default=None)
_LOCK = threading.Lock()
_NUMBERS = count()


@dataclass
class _Watchers:
    """Who sees the frames of which backend."""

    by_backend: dict[Any, Around] = field(default_factory=dict)


_watchers = _Watchers()


def around_frames(backend: Callable[..., Any], around: Around) -> None:
    """Have `around` called with every frame that is to be compiled by a backend."""
    with _LOCK:
        _watchers.by_backend[backend] = around
        _install()


@contextmanager
def collections_deferred() -> Iterator[None]:
    """Leave garbage where it is inside, for some tenths of a second: one collection looks at all that torch
    and its imports made, which takes 0.2 s, as long as the rest of a frame that is found."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not _holds_frozen_objects():
                # without these, what was put off is done at once: all young objects become old ones, unseen
                gc.freeze()
                gc.unfreeze()
            gc.enable()


_frozen = False


def _holds_frozen_objects() -> bool:
    """Whether the process keeps objects from its collector, as servers and test runs do. A process that does
    is asked once: counting a million such objects takes as long as a small compilation."""
    global _frozen
    _frozen = _frozen or gc.get_freeze_count() > 0
    return _frozen


@cache
def _install() -> None:
    from torch._dynamo import convert_frame

    compile_frame: Any = convert_frame._compile
    parameters = signature(compile_frame)

    build_guards: Any = convert_frame.CheckFunctionManager

    def noted(code: CodeType, graph: Any, *args: Any, **named: Any) -> Any:
        current = _CURRENT.get()
        if current is None or current.code is not code:
            return build_guards(code, graph, *args, **named)
        manager = NotingBuilder(code, graph, *args, **named)
        current.note(manager, graph)
        return manager

    def compiled(*args: Any, **named: Any) -> Any:
        trace = partial(compile_frame, *args, **named)
        arguments = parameters.bind(*args, **named).arguments
        compiler, buckets = _innermost(arguments["compiler_fn"])
        around = _watchers.by_backend.get(getattr(compiler, "compiler_fn", None))
        if around is None:
            return trace()
        with shortcuts():
            frame = Frame(arguments, compiler, buckets)
            return around(frame, trace) if _is_plain(arguments) else trace()

    watch_conversions()
    convert_frame._compile = compiled
    convert_frame.CheckFunctionManager = noted


def _innermost(compiler: Any) -> tuple[Any, str]:
    """What the user gave to `torch.compile`, below what Dynamo puts around it; and how large the buckets are
    into which one of these cuts graphs."""
    buckets = ""
    while True:
        if hasattr(compiler, "_torchdynamo_orig_backend"):
            compiler = compiler._torchdynamo_orig_backend
        elif found := limits(compiler):
            compiler, buckets = compiler.__self__.backend_compile_fn, found
        else:
            return compiler, buckets


def _is_plain(arguments: Mapping[str, Any]) -> bool:
    """Whether nothing but guards, code and a graph comes of tracing a frame."""
    from torch._dynamo import config, convert_frame

    hooks = arguments["hooks"]
    return not (
        arguments["export"]
        or arguments.get("package") is not None
        or hooks.guard_export_fn is not None
        or hooks.guard_filter_fn is not None
        or convert_frame._bytecode_hooks
        or config.enable_compiler_collectives
        or config.caching_precompile
    )


def dynamo_switches() -> Iterator[str]:
    """What tracing depends on besides a frame and what its guards compare, as lines that are the same in
    every process: Dynamo's own settings, and what it takes for constant."""
    import torch
    from torch._dynamo import config

    ignored: Any = config._compile_ignored_keys
    found = config.get_config_copy()
    yield f"dynamo {', '.join(f'{key}={_text(found[key])}' for key in sorted(found) if key not in ignored)}"
    backends = torch.backends
    yield (
        f"there {torch.cuda.is_available()} {torch.cuda.device_count()} {torch.xpu.is_available()}"
        f" {torch.distributed.is_available()} {backends.cudnn.enabled} {backends.cuda.matmul.allow_tf32}"
    )
    yield (
        f"attention {backends.cuda.flash_sdp_enabled()} {backends.cuda.mem_efficient_sdp_enabled()}"
        f" {backends.cuda.math_sdp_enabled()} {backends.cuda.cudnn_sdp_enabled()}"
    )


def _text(value: Any) -> str:
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(_text, value)))}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(_text, value))})"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_text(key)}: {_text(item)}' for key, item in value.items()))}}}"
    named = getattr(value, "__qualname__", None)
    return repr(value) if named is None else f"{value.__module__}.{named}"


def _traced(manager: Any, graph: Any) -> TracedFrame:
    builtins = graph.name_of_builtins_dict_key_in_fglobals or ""
    made = {name: graph.global_scope[name] for name in graph.installed_globals if name != builtins}
    # torch 2.11 keeps the code of functions with closures there, for people who look for faults
    made = {name: value for name, value in made.items() if not isinstance(value, CodeType)}
    graphs = [name for name in made if name.startswith("__compiled_fn")]
    resumes = {
        name: _resume_code(value, graph.global_scope)
        for name, value in made.items()
        if name.startswith("__resume_at")
    }
    if len(graphs) > 1:
        raise Unstorable("it has several graphs")
    imports = {name: (module, "") for name, module in graph.import_sources.items()}
    own = {*graphs, *resumes}
    imports |= {name: _reference_to(name, value) for name, value in made.items() if name not in own}
    codes = list(graph.tracing_context.traced_code)
    return TracedFrame(
        guards=recorded(manager, graph),
        program=b"",
        graph=graphs[0] if graphs else "",
        stitched=stitched(made[graphs[0]]) if graphs else None,
        resumes=resumes,
        imports=imports,
        builtins=builtins,
        files=frozenset(code.co_filename for code in codes),
        names=frozenset(name for code in codes for name in code.co_names),
    )


def _resume_code(value: Any, scope: dict[str, Any]) -> tuple[str, bytes]:
    """The module and the code of a function for what follows a graph break."""
    code, globals_of = value.__code__, value.__globals__
    if value.__closure__:  # a function that makes it
        held = getclosurevars(value).nonlocals
        code, globals_of = held["code"], held["f_globals"]
    module = "" if globals_of is scope else str(globals_of.get("__name__"))
    if module and vars(sys.modules.get(module, sys)) is not globals_of:
        raise Unstorable("a function for what follows a graph break is of no module")
    return module, dumped(code, globals_of)


def _reference_to(name: str, value: Any) -> tuple[str, str]:
    """Where the value of a global variable that Dynamo made is found in another process."""
    if isinstance(value, ModuleType):
        reference = value.__name__, ""
    else:
        reference = str(getattr(value, "__module__", "")), str(getattr(value, "__qualname__", ""))
        if not all(reference):
            raise Unstorable(f"Dynamo makes a global variable {name} of type {type(value).__name__}")
    try:
        found = _imported(*reference)
    except (ImportError, AttributeError):
        found = None
    if found is not value:
        raise Unstorable(f"Dynamo makes a global variable {name}, whose value is not {'.'.join(reference)}")
    return reference


def _imported(module: str, name: str) -> Any:
    found: Any = import_module(module)
    for part in name.split(".") if name else ():
        found = getattr(found, part)
    return found


def _reserve_name(name: str) -> None:
    """Have Dynamo give the name of a global variable to nothing else: it numbers its own in each process."""
    from torch._dynamo.bytecode_transformation import unique_id

    number = name.rpartition("_")[2]
    while number.isdecimal() and int(unique_id("").rpartition("_")[2]) < int(number):
        pass
