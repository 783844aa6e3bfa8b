"""AOTAutograd's cache of what it made of a graph, with keys and a folder of ours.

torch stores, for a backend whose results can be serialised, the compiled graphs together with the wrappers
that AOTAutograd puts around them, and the guards under which they hold. Its key for that follows the needs of
its own compiler: computing it loads a large part of that compiler, and says nothing about another one. So the
key is computed by the caller, and the functions of torch that say under which key and in which folder it
looks, and that make and store an entry, are replaced by ones that do what they did for other compilations.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from torch._functorch._aot_autograd import autograd_cache, schemas
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule

from polyfuse.base.log import get_logger
from polyfuse.torch_compat.captures.bucket_layouts import (
    Layouts,
    beginning_fake,
    is_awaited,
    not_awaited,
    note_metadata,
)
from polyfuse.torch_compat.captures.written_inputs import (
    InputMemory,
    overlapping_raises,
    with_written_apart,
)
from polyfuse.torch_compat.tracing import shapes
from polyfuse.torch_compat.tracing.output_views import OutputView, with_views
from polyfuse.torch_compat.training_calls import direct_calls, for_batches


class CacheEntryGone(Exception):
    """An entry cannot be used: something that it needs is not there any more."""


@dataclass(frozen=True)
class GraphCacheEntry:
    """The entry of one graph in the graph cache.

    Attributes:
        key: its address.
        folder: where entries lie, each under its key.
        revive: from what an entry stores to something that can be called, or `CacheEntryGone`.
        stored: called when torch has tried to store it, perhaps in another thread: a graph with gradients is
            stored when its backward has been compiled.
        listed: whether the graph can be found under its key, by other processes too.
        views: results whose geometry is compared at each call.
        memory: what inputs are, of which some may be written.
        seen: called with the name of the file of its entry when that is read or about to be written.
    """

    key: str
    folder: Path
    revive: Callable[[Any], Callable[[list[Any]], Any]]
    stored: Callable[[], None]
    listed: bool = True
    views: tuple[OutputView, ...] = ()
    memory: InputMemory | None = None
    seen: Callable[[str], None] | None = None


class Storable(Protocol):
    """What is stored of a graph."""

    def portable(self) -> Storable:
        """It, with all that another process needs."""

    def revive(self) -> Callable[[list[Any]], Any]:
        """What can be called."""


_log = get_logger("cache")

_original_folder = autograd_cache.AOTAutogradCache._get_tmp_dir

_CURRENT: ContextVar[GraphCacheEntry | None] = ContextVar("polyfuse_graph_cache_entry", default=None)
_LOCK = threading.Lock()


class _Entry(autograd_cache.BundledAOTAutogradResult):
    """What torch stores of a graph, with what is compared at each call: geometries of results, and where
    inputs lie of which some are written."""

    views: tuple[OutputView, ...] = ()
    memory: InputMemory | None = None

    def wrap_post_compile(self, args: Any, aot_config: Any, fx_config: Any) -> Callable[..., Any]:
        """The graph, called with a list of its inputs. Where the compiler runs, it compares these
        itself; here that is done for what torch loads alone."""
        run = super().wrap_post_compile(args, aot_config, fx_config)
        note_metadata(self.runtime_metadata)
        if _CURRENT.get() is not None:
            return run

        def given(*inputs: Any) -> Any:
            return run(list(inputs))

        compared = self.compared(given)
        # where nothing is compared, the graph empties the list of its inputs as it goes
        return run if compared is given else lambda inputs: compared(*inputs)

    def compared(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """The graph, called with its inputs one by one, where nothing was captured."""
        run = with_views(run, self.views)
        if self.memory is None:
            return run
        return with_written_apart(run, overlapping_raises, self.memory, self.runtime_metadata)


class CachedCode(autograd_cache.OutputCode):
    """A compiled graph that torch may cache: `record` is stored, and `run` made from it again.

    Attributes:
        run: the compiled graph.
        record: what is stored of it; None where it cannot be.
        bypass: why not.
        first: layouts of its results, which the first call of a bucket returns as fake tensors.
        donated: of a backward, positions of inputs that it may overwrite; None: it is none.
    """

    def __init__(
        self,
        run: Callable[[list[Any]], Any],
        record: Storable | None,
        bypass: str = "",
        first: Layouts | None = None,
        donated: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        self.run: Callable[[list[Any]], Any] | None = run
        self.record: Any = record
        self.bypass = bypass
        self.first = first
        self.donated = donated
        self.entry = _CURRENT.get()
        # torch copies these from instances, where it wraps functions
        self._boxed_call = True
        self._time_taken_ns = 0
        # that there is one says to torch that this may be stored
        self._fx_graph_cache_key = "" if self.entry is None else self.entry.key

    def __call__(self, inputs: Any) -> Any:
        assert self.run is not None
        return self.run(inputs)

    def prepare_for_serialization(self) -> None:
        """Called on a copy that is about to be stored."""
        if self.record is None:
            raise autograd_cache.BypassAOTAutogradCache(self.bypass)
        self.run = self.entry = None

    def __copy__(self) -> CachedCode:
        return self._like(self.run, self.entry)

    def __deepcopy__(self, memo: Any) -> CachedCode:
        return self._like(None, None)

    def __getstate__(self) -> dict[str, Any]:
        """In the graph cache a record names its kernels; wherever else torch stores it, it holds them."""
        record = self.record
        if record is not None and _CURRENT.get() is None:
            record = record.portable()
        return {**vars(self), "record": record, "run": None, "entry": None}

    def _like(self, run: Any, entry: GraphCacheEntry | None) -> CachedCode:
        copied = CachedCode.__new__(CachedCode)
        copied.__dict__.update(vars(self), run=run, entry=entry)
        return copied

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Called on what was read, by a compile or by torch's own functions that load."""
        current = _CURRENT.get()
        try:
            self.run = self.record.revive() if current is None else current.revive(self.record)
            self.run = beginning_fake(self.run, self.first)
            if self.donated is not None:
                self.run = for_batches(self.run, self.donated)
        except CacheEntryGone as error:
            raise autograd_cache.FXGraphCacheMiss(
                f"what was compiled cannot be used here: {error}; compile it again"
            ) from error

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Kernels lie in a store of their own."""


def serialisable(compiler: Callable[..., Any]) -> Any:
    """Mark a compiler, to be given to AOTAutograd, as one that makes `CachedCode`."""
    return schemas.SerializableAOTDispatchCompiler(CachedCode, compiler)


def entry_name(content: bytes) -> str:
    """The name of the file that torch writes for an entry of this content."""
    return str(autograd_cache.sha256_hash(content))


def bypass_reason(gm: GraphModule) -> str:
    """Why torch itself would bypass its cache for a captured graph; empty if it would not.

    Of operators that take functions torch admits a few: whether one can be identified, the caller decides.
    """
    if is_awaited() and _varies(gm):
        return "it is a bucket, and sizes of its inputs vary"
    try:
        with not_awaited():
            autograd_cache.check_cacheable(GraphModule({}, Graph()))
        for part in gm.modules():
            for node in part.graph.nodes if isinstance(part, GraphModule) else ():
                if not isinstance(node.target, HigherOrderOperator):
                    autograd_cache.check_node_safe(node)
    except autograd_cache.BypassAOTAutogradCache as error:
        return " ".join(str(error).split())
    return ""


def _varies(gm: GraphModule) -> bool:
    """Whether sizes of a graph's inputs vary."""
    values = (node.meta.get("example_value") for node in gm.graph.find_nodes(op="placeholder"))
    return any(shapes.is_symbolic(value) or shapes.free_symbols(value) for value in values)


def artifacts_folder() -> Path:
    """Where `torch.compiler.load_cache_artifacts` puts entries, each under its key."""
    return Path(str(_original_folder()))


def without_bundle(content: bytes, unpacked: Callable[[Any], Any]) -> bytes:
    """An entry that `torch.compiler.save_cache_artifacts` made as the graph cache stores it.

    Args:
        content: is unpickled, which can execute anything.
        unpacked: from the portable record of a graph to one that names its kernels.
    """
    entry = pickle.loads(content)
    for part in (entry.compiled_fw, entry.compiled_bw):
        if part is not None:
            part.result.record = unpacked(part.result.record)
    return _pickled_for(_NAMED, entry)


def reopened(content: bytes, current: GraphCacheEntry) -> Callable[..., Any]:
    """An entry as the function that AOTAutograd made, where nothing was captured.

    Args:
        content: is unpickled, which can execute anything.
        current: revives it.

    Raises:
        Exception: something that it needs is not there.
    """
    from torch._guards import TracingContext
    from torch._guards import tracing as torch_tracing
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    token = _CURRENT.set(current)
    try:
        entry = pickle.loads(content)
        entry.guards_expr = None  # they are among Dynamo's
        with torch_tracing(TracingContext(FakeTensorMode(shape_env=ShapeEnv()))), direct_calls():
            run = entry.wrap_post_compile([], entry.sanitized_aot_config, {})
    finally:
        _CURRENT.reset(token)
    return entry.compared(lambda *inputs: run(list(inputs)))


class _Artifact:
    """An entry for `torch.compiler.save_cache_artifacts`: what it holds is made when that is called, since
    kernels are still being built when torch takes note of it.
    """

    def __init__(self, key: str, entry: bytes) -> None:
        self.key = key
        self._entry = entry

    @staticmethod
    def type() -> str:
        """The kind of artifact that it is read as."""
        return str(autograd_cache.AOTAutogradCacheArtifact.type())

    @property
    def content(self) -> bytes:
        """The entry with the kernels that it needs."""
        try:
            return _pickled_for(None, pickle.loads(self._entry))
        except Exception as error:  # those of other compilers are saved all the same
            _log.warning("kernels of a compiled graph are not among the saved artifacts: %s", error)
            return self._entry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Artifact) and (self.key, self._entry) == (other.key, other._entry)

    def __hash__(self) -> int:
        return hash((self.key, self._entry))


# Some entry: records are pickled with the names of their kernels.
_NAMED = GraphCacheEntry("", Path(), lambda record: record, lambda: None, listed=False)


def _pickled_for(current: GraphCacheEntry | None, entry: Any) -> bytes:
    token = _CURRENT.set(current)
    try:
        return pickle.dumps(entry)
    finally:
        _CURRENT.reset(token)


@contextmanager
def caching(current: GraphCacheEntry) -> Iterator[None]:
    """Look up, and store, what AOTAutograd makes of the one graph that is compiled inside."""
    from torch._functorch import config

    with _LOCK:
        _install()
    token = _CURRENT.set(current)
    try:
        with config.patch({"enable_autograd_cache": True}):
            yield
    finally:
        _CURRENT.reset(token)


@cache
def _install() -> None:
    from torch.compiler._cache import CacheArtifactManager as manager

    store = autograd_cache.AOTAutogradCache
    its_key, its_folder, its_record = (
        autograd_cache.autograd_cache_key,
        _original_folder,
        manager.record_artifact,
    )
    its_entry, its_save = store.make_entry, store.save

    def key(*args: Any, **named: Any) -> tuple[str, Sequence[str]]:
        current = _CURRENT.get()
        if current is None:
            found: tuple[str, Sequence[str]] = its_key(*args, **named)
            return found
        return current.key, []

    def folder(*args: Any) -> str:
        current = _CURRENT.get()
        return str(its_folder()) if current is None else str(current.folder)

    def make_entry(*args: Any, **named: Any) -> Any:
        """An entry holds compiled graphs of ours, where it would name those of torch's own compiler."""
        from torch._functorch import config

        forward = _cached_code(named["compiled_fw_func"] if "compiled_fw_func" in named else args[0])
        if forward is None:
            return its_entry(*args, **named)
        with config.patch({"bundled_autograd_cache": True}):
            entry = its_entry(*args, **named)
        if forward.entry is not None:
            entry.__class__ = _Entry
            entry.views, entry.memory = forward.entry.views, forward.entry.memory
        # a backward that was read looks after itself where what it overwrites is needed again
        entry.runtime_metadata = copy(entry.runtime_metadata)
        entry.runtime_metadata.bw_donated_idxs = []
        return entry

    def save(key: str, entry: Any, *args: Any, **named: Any) -> None:
        forward = _cached_code(getattr(entry.compiled_fw, "result", None))
        current = forward.entry if forward is not None else None
        if current is None:
            its_save(key, entry, *args, **named)
            return
        token = _CURRENT.set(current)
        try:
            its_save(key, entry, *args, **named)
        finally:
            _CURRENT.reset(token)
            current.stored()

    def record_artifact(kind: str, key: str, content: Any) -> None:
        current = _CURRENT.get()
        if current is None or key != current.key:
            its_record(kind, key, content)
            return
        if current.seen is not None:
            current.seen(entry_name(content))
        artifact = _Artifact(key, content)
        if current.listed and artifact not in manager._seen_artifacts:
            manager._new_cache_artifacts[kind].append(artifact)
            manager._seen_artifacts.add(artifact)

    autograd_cache.autograd_cache_key = key
    manager.record_artifact = staticmethod(record_artifact)
    store._get_tmp_dir = staticmethod(folder)
    store.make_entry = staticmethod(make_entry)
    store.save = staticmethod(save)


def _cached_code(compiled: Any) -> CachedCode | None:
    """The compiled graph below the functions that torch has wrapped it in, if it is one of ours."""
    while hasattr(compiled, "__wrapped__"):
        compiled = compiled.__wrapped__
    return compiled if isinstance(compiled, CachedCode) else None
