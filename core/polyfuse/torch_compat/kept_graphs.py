"""AOTAutograd's cache of what it made of a graph, with keys and a folder of ours.

torch keeps, for a backend whose results can be serialised, the compiled graphs together with the wrappers
that AOTAutograd puts around them, and the guards under which they hold. Its key for that follows the needs of
its own compiler: computing it loads a large part of that compiler, and says nothing about another one. So the
key is computed by the caller, and the two functions that say under which key and in which folder torch looks
are replaced; for compilations that do not ask for it they do what they did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torch._functorch._aot_autograd import autograd_cache, schemas
from torch.fx import GraphModule

__all__ = ["KeptCode", "KeptIsGone", "Keeping", "keeping", "refusal", "serialisable"]


class KeptIsGone(Exception):
    """What was kept cannot be used: something that it needs is not there any more."""


@dataclass(frozen=True)
class Keeping:
    """How one graph is kept.

    Attributes:
        key: its address.
        folder: where entries lie, each under its key.
        revive: from what was kept of a graph to something that can be called, or `KeptIsGone`.
    """

    key: str
    folder: Path
    revive: Callable[[Any], Callable[[list[Any]], Any]]


_CURRENT: ContextVar[Keeping | None] = ContextVar("polyfuse_keeping", default=None)
_LOCK = threading.Lock()


class KeptCode(autograd_cache.OutputCode):
    """A compiled graph that torch may keep: `record` is stored, and `run` made from it again.

    Attributes:
        run: the compiled graph.
        record: what is stored of it; None where it cannot be.
        refusal: why not.
    """

    def __init__(self, run: Callable[[list[Any]], Any], record: Any, refusal: str = "") -> None:
        super().__init__()
        self.run: Callable[[list[Any]], Any] | None = run
        self.record = record
        self.refusal = refusal
        # torch copies these from instances, where it wraps functions
        self._boxed_call = True
        self._time_taken_ns = 0

    def __call__(self, inputs: Any) -> Any:
        assert self.run is not None
        return self.run(inputs)

    def prepare_for_serialization(self) -> None:
        """Called on a copy that is about to be stored."""
        if self.record is None:
            raise autograd_cache.BypassAOTAutogradCache(self.refusal)
        self.run = None

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Called on what was read."""
        current = _CURRENT.get()
        try:
            if current is None:
                raise KeptIsGone("it was read by another compiler than the one that wrote it")
            self.run = current.revive(self.record)
        except KeptIsGone as error:
            raise autograd_cache.FXGraphCacheMiss(str(error)) from error

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Kernels lie in a store of their own."""


def serialisable(compiler: Callable[..., Any]) -> Any:
    """Mark a compiler, to be given to AOTAutograd, as one that makes `KeptCode`."""
    return schemas.SerializableAOTDispatchCompiler(KeptCode, compiler)


def refusal(gm: GraphModule) -> str:
    """Why torch itself would not keep what becomes of a captured graph; empty if it would."""
    try:
        autograd_cache.check_cacheable(gm)
    except autograd_cache.BypassAOTAutogradCache as error:
        return " ".join(str(error).split())
    return ""


@contextmanager
def keeping(current: Keeping) -> Iterator[None]:
    """Look up, and store, what AOTAutograd makes of the one graph that is compiled inside."""
    from torch._functorch import config

    with _LOCK:
        _install()
    token = _CURRENT.set(current)
    # torch does not store a backward that is compiled when it first runs: it is compiled with its forward
    changes = {
        "enable_autograd_cache": True,
        "bundled_autograd_cache": True,
        "force_non_lazy_backward_lowering": True,
    }
    try:
        with config.patch(changes):
            yield
    finally:
        _CURRENT.reset(token)


@cache
def _install() -> None:
    its_key, its_folder = autograd_cache.autograd_cache_key, autograd_cache.AOTAutogradCache._get_tmp_dir

    def key(*args: Any, **named: Any) -> tuple[str, Sequence[str]]:
        current = _CURRENT.get()
        if current is None:
            found: tuple[str, Sequence[str]] = its_key(*args, **named)
            return found
        return current.key, []

    def folder(*args: Any) -> str:
        current = _CURRENT.get()
        return str(its_folder()) if current is None else str(current.folder)

    autograd_cache.autograd_cache_key = key
    autograd_cache.AOTAutogradCache._get_tmp_dir = staticmethod(folder)
