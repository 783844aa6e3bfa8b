"""What a long compile does at the moment: one line on a terminal or in a notebook, after two seconds.

A thread of its own draws the line; compiling only notes the stage that it is in, so that it is neither slowed
nor held up, in whichever threads it happens. Where nothing is shown, no thread is started.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from polyfuse.base.log import get_logger

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.workers import BuildFuture

_log = get_logger("compiler")

_PATIENCE = 2.0
"""Seconds before anything is shown, and below which nothing is logged."""
_REFRESH = 0.25
_LINES = 10.0
"""Seconds between lines where a line cannot be drawn anew."""
_STAGES: Final = ("trace", "lower", "claim", "autotune", "fuse", "generate", "plan", "load")
_DRAWS_ITSELF = "autotune"
"""The stage whose own table is shown instead of the line."""

Draw = Callable[[str], None]


@dataclass(eq=False)
class _Compile:
    """One graph being compiled, by one thread."""

    began: float
    stage: str = _STAGES[0]


@dataclass
class Progress:
    """Everything that is compiled in this process.

    Attributes:
        draw: shows a line in place of the one before; an empty one takes it away.
        patience, refresh: seconds before the first line, and between lines.
    """

    draw: Draw
    patience: float = _PATIENCE
    refresh: float = _REFRESH
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _active: dict[int, _Compile] = field(default_factory=dict)
    _builds: list[BuildFuture] = field(default_factory=list)
    _began: float = 0.0
    _first_build: float = 0.0
    _thread: threading.Thread | None = None
    _drawing: threading.Lock = field(default_factory=threading.Lock)
    _is_drawn: bool = False

    def begin(self, compile_: _Compile) -> None:
        """A compile begins."""
        with self._lock:
            self._active[id(compile_)] = compile_
            if self._thread is None or not self._thread.is_alive():  # a thread does not survive a fork
                self._began = time.monotonic()
                self._thread = threading.Thread(target=self._show, name="polyfuse-progress", daemon=True)
                self._thread.start()

    def end(self, compile_: _Compile) -> None:
        """A compile is over; its kernels may still be built."""
        with self._lock:
            self._active.pop(id(compile_), None)
        self.clear_if_idle()

    def build(self, futures: Iterable[BuildFuture]) -> None:
        """Kernels are being built."""
        with self._lock:
            if not self._builds:
                self._first_build = time.monotonic()
            self._builds.extend(futures)

    def text(self, now: float) -> str:
        """What is going on; empty if nothing is."""
        with self._lock:
            active, builds = list(self._active.values()), list(self._builds)
            first_build = self._first_build
        total = sum(len(future.keys) for future in builds)
        done = total - sum(future.left() for future in builds)
        if not active and done == total:
            return ""
        parts = []
        if active:
            stage = active[-1].stage
            position = f"{_STAGES.index(stage) + 1} of {len(_STAGES)}" if stage in _STAGES else ""
            others = f" and {len(active) - 1} more graphs" if len(active) > 1 else ""
            parts.append(f"{stage}{others} (stage {position})" if position else f"{stage}{others}")
        if total:
            parts.append(f"kernels built {done} of {total}{_left(done, total, now - first_build)}")
        return f"polyfuse: {', '.join(parts)}, {now - self._began:.0f} s so far"

    @property
    def is_elsewhere(self) -> bool:
        """Whether something else draws at the moment."""
        with self._lock:
            return any(item.stage == _DRAWS_ITSELF for item in self._active.values())

    def clear_if_idle(self) -> None:
        """Take the line away at once if nothing is going on: what the program prints next begins a line."""
        if self._is_drawn and not self.text(time.monotonic()):
            self._put("")

    def _put(self, text: str) -> None:
        with self._drawing:
            was_drawn = self._is_drawn
            if text:
                self._is_drawn = True  # first: who clears from now on waits, who did before is seen below
                if not self.text(time.monotonic()):
                    self._is_drawn = was_drawn
                    return  # it was over while the line was made
            if text or was_drawn:
                # an empty text: it stays true until the line is gone, since who clears meanwhile waits
                try:
                    self.draw(text)
                except Exception as error:  # looking on must not be what fails
                    _log.debug("progress cannot be shown: %r", error)
                    self.draw = _draw_nothing
                self._is_drawn = bool(text)

    def _show(self) -> None:
        """Draw until nothing is going on."""
        while True:
            time.sleep(self.refresh)
            now = time.monotonic()
            text = self.text(now)
            if not text:
                with self._lock:
                    if self._active:
                        continue
                    self._builds.clear()
                    self._thread = None
                break
            if now - self._began >= self.patience:
                self._put("" if self.is_elsewhere else text)
        self.clear_if_idle()


def _draw_nothing(text: str) -> None:
    """Where drawing failed."""


def _left(done: int, total: int, seconds: float) -> str:
    return f" (about {seconds / done * (total - done):.0f} s left)" if 0 < done < total else ""


_HERE = threading.local()
_LOCK = threading.Lock()
_progress: Progress | None = None


@contextmanager
def compiling(settings: Settings, name: Callable[[], str]) -> Iterator[None]:
    """Around the compile of one graph: shown where the option `progress` says so; a long one is a line in the
    log in any case.

    Args:
        name: of the graph, asked for only if it is logged.
    """
    if getattr(_HERE, "compile", None) is not None:  # a graph within a graph
        yield
        return
    compile_ = _HERE.compile = _Compile(time.monotonic())
    progress = _shown(settings)
    if progress is not None:
        progress.begin(compile_)
    try:
        yield
    finally:
        _HERE.compile = None
        if progress is not None:
            progress.end(compile_)
        seconds = time.monotonic() - compile_.began
        if seconds >= _PATIENCE:
            _log.info("%s took %.1f s to compile", name(), seconds)


def enter_stage(name: str) -> None:
    """The graph that this thread compiles enters a stage."""
    compile_: _Compile | None = getattr(_HERE, "compile", None)
    if compile_ is not None:
        compile_.stage = name


def watch_builds(futures: Iterable[BuildFuture]) -> None:
    """Count kernels that are being built, if that is shown."""
    if _progress is not None and getattr(_HERE, "compile", None) is not None:
        _progress.build(futures)


def note_built() -> None:
    """A kernel that was waited for is there."""
    if _progress is not None:
        _progress.clear_if_idle()


def _shown(settings: Settings) -> Progress | None:
    """What shows compiles under these settings; None where nothing does."""
    global _progress
    if settings.progress == "off":
        return None
    draw = _drawer(settings.progress == "on")
    if draw is None:
        return None
    with _LOCK:
        if _progress is None:
            _progress = Progress(draw)
        return _progress


def _drawer(always: bool) -> Draw | None:
    """How lines are shown here: in place on a terminal and in a notebook, else, if they must be, every ten
    seconds.
    """
    if _in_notebook():
        return _Notebook().draw
    if sys.stderr is not None and sys.stderr.isatty():
        return _draw_on_terminal
    return _Lines().draw if always else None


def _draw_on_terminal(text: str) -> None:
    from rich.console import Console
    from rich.control import Control
    from rich.segment import ControlType

    console = Console(stderr=True, highlight=False, markup=False)
    console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
    if text:
        console.print(text, end="", no_wrap=True, overflow="ellipsis", crop=True, style="dim")


class _Lines:
    """A line now and then."""

    def __init__(self) -> None:
        self._last = 0.0

    def draw(self, text: str) -> None:
        """Print it, if the last one was long ago."""
        now = time.monotonic()
        if text and now - self._last >= _LINES:
            self._last = now
            print(text, file=sys.stderr, flush=True)


class _Notebook:
    """An output below the cell that is replaced."""

    def __init__(self) -> None:
        self._handle: Any = None

    def draw(self, text: str) -> None:
        """Show it instead of the one before."""
        display: Any = import_module("IPython.display").display
        data = {"text/plain": text or "polyfuse: compiled"}
        if self._handle is None and text:
            self._handle = display(data, raw=True, display_id=True)
        elif self._handle is not None:
            self._handle.update(data, raw=True)
        if not text:
            self._handle = None


def _in_notebook() -> bool:
    """Whether this process is a notebook's kernel; a terminal's IPython is none."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None
    return shell is not None and hasattr(shell, "kernel")
