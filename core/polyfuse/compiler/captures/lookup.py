"""Looks frames up before Dynamo traces them, and stores what it made of those that it traced.

A frame is found by its code, the kinds of its variables, and all that the key of a graph holds besides the
graph. Of the records there, the first is used whose guards say on this frame what they said when it was
traced, whose sources are unchanged, and whose graph is in the graph cache. Whatever fails on the way, Dynamo
traces the frame.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from polyfuse.base.digest import digest, stable_json
from polyfuse.base.errors import PolyfuseError
from polyfuse.base.files import atomic_write
from polyfuse.base.log import get_logger
from polyfuse.base.settings import Settings, child_environment
from polyfuse.cache.artifacts import mark_used
from polyfuse.cache.graphs import count
from polyfuse.cache.key_fields import KeyNotes
from polyfuse.compiler.captures.files import file_text, is_versioned
from polyfuse.compiler.captures.objects import code_text, described
from polyfuse.compiler.captures.pending import Pending
from polyfuse.compiler.graph_cache.lookup import GraphCache, key_of
from polyfuse.compiler.once import only_rank
from polyfuse.compiler.session import decided, session_for
from polyfuse.torch_compat.captures.frames import TracedFrame, collections_deferred, dynamo_switches
from polyfuse.torch_compat.captures.guards import Unstorable, hooks_of, without_comments
from polyfuse.torch_compat.groups import group_names, group_of, this_rank
from polyfuse.torch_compat.options.counterparts import translated
from polyfuse.torch_compat.tracing.dynamo import disable

if TYPE_CHECKING:
    from polyfuse.compiler.session import CompileSession
    from polyfuse.torch_compat.captures.frames import Frame

_log = get_logger("cache")

_MOST = 24
"""Records under one key that are tried, the last used first: building guards takes some 0.1 s."""

_RANK = frozenset(
    ("get_rank", "rank", "get_local_rank", "get_group_rank", "get_global_rank")
    + ("get_coordinate", "get_node_local_rank", "local_rank")
)
"""Names in traced code by which it may depend on the rank, of which there are no guards."""

_VARIABLES = frozenset({"environ", "getenv", "environb", "encodekey"})
"""Those by which it may depend on variables of the environment, and one that Python's own code has there: for
one that is not set there are no guards."""


@dataclass(frozen=True)
class _Record:
    """What is stored of a frame.

    Attributes:
        traced: what Dynamo made of it.
        says: digest of what its guards said.
        files: digest of the sources that were traced.
        graphs: where its graphs lie in the graph cache: their keys, and the names of the entries there.
        rank: the only one that it holds for; None: for all.
        variables: digest of all variables of the environment, where it may depend on them; else empty.
    """

    traced: TracedFrame
    says: str
    files: str
    graphs: tuple[tuple[str, str], ...]
    rank: int | None
    variables: str


def around(frame: Frame, trace: Callable[[], Any]) -> Any:
    """What Dynamo returns for a frame, from the cache or by `trace`."""
    try:
        settings = decided(Settings.resolve(frame.mode, translated(frame.options)))
    except PolyfuseError:  # the backend says so itself, where users see it
        return trace()
    if not (settings.capture_cache and settings.graph_cache):
        return trace()
    try:
        with collections_deferred():
            session = session_for(settings)
    except Exception:  # the backend says so itself, too
        return trace()
    try:
        with collections_deferred():
            captures = _Captures(session, frame)
    except Exception as error:
        _log.info("a frame is not looked up: %s", error)
        KeyNotes(session.store.root).not_captured(f"it is not looked up: {error}")
        return trace()
    found = captures.find()
    if found is not None:
        return found
    with only_rank(captures.session, captures.key, captures.find) as found:
        return found if found is not None else captures.traced(trace)


class _Captures:
    """The records of one frame, under its key."""

    def __init__(self, session: CompileSession, frame: Frame) -> None:
        self.session, self._frame = session, frame
        self._notes = KeyNotes(session.store.root)
        self.key = _key_of(frame, session)
        self._folder = session.store.root / "captures" / self.key

    def find(self) -> Any | None:
        """What Dynamo made of it in an earlier process; None where nothing fits."""
        for path in self._records()[:_MOST]:
            try:
                with collections_deferred():
                    return self._restored(path)
            except Exception as error:
                _log.info("a stored frame is not used: %s: %s", type(error).__name__, error)
        return None

    def _records(self) -> list[Path]:
        try:
            return sorted(self._folder.glob("[!.]*"), key=lambda path: path.stat().st_mtime, reverse=True)
        except OSError:  # another process removes them
            return []

    def _restored(self, path: Path) -> Any:
        content = path.read_bytes()
        if digest(content) != path.name:
            path.unlink(missing_ok=True)
            raise OSError("it is damaged")
        record: _Record = pickle.loads(content)
        if record.rank not in (None, this_rank()):
            raise LookupError("it holds for another rank")
        if record.variables not in ("", _variables()):
            raise LookupError("it depends on variables of the environment, which changed")
        if record.files != _files_text(record.traced):
            raise LookupError("its sources changed")
        guards, text = self._frame.guards_on(record.traced, described)
        if digest(text) != record.says:
            raise LookupError("its guards say something else")
        result = self._frame.replaced(record.traced, guards, self._graph(path, record))
        mark_used(path)
        count("captured")
        return result

    def _graph(self, path: Path, record: _Record) -> Callable[..., Any] | None:
        if not record.traced.graph:
            return None
        try:
            graphs = [
                GraphCache(self.session, self._agreement()).reopen(key, entry) for key, entry in record.graphs
            ]
            called = record.traced.stitched
            (graph,) = graphs if called is None else (called.around(graphs),)
        except Exception:
            path.unlink(missing_ok=True)
            raise
        return disable(graph, reason="already compiled")

    def _agreement(self) -> Any:
        if this_rank() < 0:
            return None
        from polyfuse.compiler.ranks import agreement_of

        return agreement_of(self.session, partial=False)

    def traced(self, trace: Callable[[], Any]) -> Any:
        """Have Dynamo trace it, and store what comes of it."""
        found: list[tuple[TracedFrame, str, str]] = []
        pending = Pending(lambda graphs: self._store(*found[0], tuple(graphs)), self._notes.not_captured)
        try:
            with self._frame.watched(), pending.tracing():
                result = trace()
        except BaseException as error:
            self._notes.not_captured(f"Dynamo leaves the frame to Python: {type(error).__name__}")
            raise
        try:
            if pending.refused:
                raise Unstorable(pending.refused)
            found.append(self._checked(result))
            pending.keep()
        except Unstorable as error:
            _log.info("what Dynamo made of %s is not stored: %s", self._frame.code.co_qualname, error)
            self._notes.not_captured(str(error))
        except Exception as error:
            _log.info("what Dynamo made of a frame is not stored", exc_info=True)
            self._notes.not_captured(f"it cannot be stored: {type(error).__name__}: {error}")
        return result

    def _checked(self, result: Any) -> tuple[TracedFrame, str, str]:
        """What Dynamo made of the frame, what its guards say, and its sources."""
        traced = self._frame.traced(result)
        _, text = self._frame.guards_on(traced, described)
        if without_comments(text) != without_comments(self._frame.said(result, described)):
            raise Unstorable("its guards are others when they are built again")
        return traced, digest(text), _files_text(traced)

    def _store(self, traced: TracedFrame, says: str, files: str, graphs: tuple[tuple[str, str], ...]) -> None:
        rank = this_rank()
        by_rank = rank >= 0 and traced.names & _RANK
        variables = _variables() if traced.names & _VARIABLES else ""
        record = _Record(traced, says, files, graphs, rank if by_rank else None, variables)
        try:
            content = pickle.dumps(record)
            atomic_write(self._folder / digest(content), content)
        except Exception as error:
            _log.info("what Dynamo made of a frame cannot be written: %s", error)
            self._notes.not_captured(f"it cannot be written: {type(error).__name__}")


def _files_text(traced: TracedFrame) -> str:
    # code that other code made has no file: what made it lies in the files of classes that guards compare
    real = (file for file in traced.files if not file.startswith("<") and not is_versioned(file))
    return digest("\n".join(map(file_text, sorted(real))))


def _key_of(frame: Frame, session: CompileSession) -> str:
    code = frame.code
    parts = (
        f"python {sys.version} {sys.flags.optimize}",
        *dynamo_switches(),
        f"frame of {frame.f_globals.get('__name__')} {code_text(code)}",
        f"{file_text(code.co_filename)} {frame.mode} {frame.dynamic} {frame.whole}",
        f"buckets {frame.buckets}",
        *_groups(),
        *(f"{kind} of all modules {described(hook)}" for kind, hook in hooks_of(torch.nn.modules.module)),
        f"tensors {described(torch.Tensor)}",
        *(f"{name} {_kind(value)}" for name, value in sorted(frame.f_locals.items())),
    )
    return key_of("\n".join(parts), session)


def _kind(value: object) -> str:
    """What tells apart frames of equal code whose guards would be of no use to each other."""
    if isinstance(value, torch.Tensor):
        return f"tensor {value.dtype} {value.dim()} {value.device} {value.requires_grad}"
    named = f"{type(value).__module__}.{type(value).__qualname__}"
    if not isinstance(value, torch.nn.Module):
        return named
    owned = [(name, str(x.dtype), x.requires_grad, tuple(x.shape)) for name, x in value.named_parameters()]
    parts = [(name, type(part).__qualname__, part.training) for name, part in value.named_modules()]
    return f"{named} {digest(stable_json([owned, parts]))}"


def _variables() -> str:
    return digest(stable_json(sorted(child_environment().items())))


def _groups() -> Iterator[str]:
    """The groups of processes that this one belongs to."""
    for name in group_names():
        group = group_of(name)
        if group is not None:
            yield f"group {name} of {len(group.ranks)} by {group.libraries}"
