"""Backends whose every method is guarded: one that raises, ends the process, or answers nothing or nonsense
is named once, with the method.

Where a safe answer exists, it is given: a node is refused, so that the next backend is asked; a tiling is not
estimated. Where there is none (`emit`, `build`, `load`, `describe`), the caller gets an exception, and tries
the next backend itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from types import new_class
from typing import Any, Final

from polyfuse.base.config import Config
from polyfuse.base.errors import BackendError, UnsupportedError
from polyfuse.base.text import brief
from polyfuse.plugin.backend import Backend
from polyfuse.plugin.claims import No, Yes
from polyfuse.plugin.hooks.faults import as_error, is_fault, wrong_answer
from polyfuse.plugin.source import HostCall, Source
from polyfuse.plugin.target_info import TargetInfo

Report = Callable[[str, BaseException, str], None]
"""Called with a backend's name, what it raised, and what it was doing."""


def guard(backend: Backend, report: Report) -> Backend:
    """Guard the methods of a backend that its class defines, and return it.

    With the option `strict`, what a method raises is raised, and an answer that is none is an error. An exit
    never ends the process.

    Args:
        report: called with each fault that was replaced by a safe answer.
    """
    backend.__class__ = _guarded(type(backend))
    vars(backend)[_REPORT] = report
    return backend


_REPORT: Final = "_polyfuse_report_fault"


@cache
def _guarded(kind: type[Backend]) -> type[Backend]:
    """A class derived from a backend's, whose methods guard those of it that are not `Backend`'s own."""
    if _REPORT in vars(kind):
        return kind
    names = [name for name in METHODS if getattr(kind, name) is not getattr(Backend, name)]
    body: dict[str, Any] = {name: _method(kind, name, METHODS[name]) for name in names}
    about = {
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        _REPORT: None,
    }
    return new_class(kind.__name__, (kind,), exec_body=lambda names: names.update(about | body))


@dataclass(frozen=True)
class Method:
    """How a method is guarded.

    Attributes:
        check: returns an answer, or raises `TypeError` with what is wrong with it.
        instead: what is answered in place of a fault, by the backend, the error and the arguments; None: an
            exception is raised.
        refuses: whether it may refuse by raising `UnsupportedError`, which then is no fault.
    """

    check: Callable[[Any], Any]
    instead: Callable[..., Any] | None = None
    refuses: bool = False


def _method(kind: type[Backend], name: str, row: Method) -> Callable[..., Any]:
    @wraps(getattr(kind, name))
    def guarded(self: Backend, *args: Any, **kwargs: Any) -> Any:
        try:
            try:
                answer = getattr(kind, name)(self, *args, **kwargs)
            except Exception:
                raise
            except BaseException as error:
                if not is_fault(error):
                    raise
                raise as_error(error, self.name, f"running its method `{name}`") from error
            try:
                return row.check(answer)
            except (Exception, SystemExit) as error:
                raise BackendError(
                    f"backend {self.name!r} answered nonsense in `{name}` ({brief(error)})", _FIX
                ) from None
        except Exception as error:
            refused = row.refuses and isinstance(error, UnsupportedError)
            if refused or row.instead is None or self.settings.strict:
                raise
            report: Report | None = getattr(self, _REPORT)
            if report is not None:
                report(self.name, error, f"running its method `{name}`")
            return row.instead(self, error, *args, **kwargs)

    return guarded


_FIX: Final = "report it to the backend's author"


def _is(*kinds: type) -> Callable[[Any], Any]:
    """A check that an answer is of one of these types."""
    wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)

    def check(answer: Any) -> Any:
        if not isinstance(answer, kinds):
            raise wrong_answer(answer, wanted)
        return answer

    return check


def _two_numbers(answer: Any) -> Any:
    """A check that an answer is a pair of integers."""
    if not isinstance(answer, tuple) or [type(n) for n in answer] != [int, int]:
        raise wrong_answer(answer, "a pair of int")
    return answer


def _configs(answer: Any) -> Sequence[Config]:
    found = tuple(answer) if isinstance(answer, Sequence) else None
    if found is None or not all(isinstance(config, Config) for config in found):
        raise wrong_answer(answer, "sequence of Config")
    return found


def _mapping(answer: Any) -> Mapping[Any, Any]:
    if not isinstance(answer, Mapping):
        raise wrong_answer(answer, "mapping")
    return dict(answer)


def _texts(answer: Any) -> Mapping[str, str]:
    found = _mapping(answer)
    if not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise wrong_answer(answer, "mapping of texts to texts")
    return found


def _launchables(answer: Any) -> Mapping[str, Any]:
    found = _mapping(answer)
    for launchable in found.values():
        if not callable(launchable):
            raise wrong_answer(launchable, "launchable, since it cannot be called")
    return found


def _nothing(_: object) -> None:
    """What it returns says nothing."""


def _refusal(_: Backend, error: BaseException, *__: object) -> No:
    cause = getattr(error, "cause", None)
    return No(cause if isinstance(cause, str) else f"it raised {brief(error)}")


def _default(name: str) -> Callable[..., Any]:
    """What a backend answers that does not define the method."""
    return lambda backend, _, *args: getattr(Backend, name)(backend, *args)


METHODS: Final[Mapping[str, Method]] = {
    "claims": Method(_is(Yes, No), _refusal),
    "may_group": Method(_is(Yes, No), _refusal),
    "target_info": Method(_is(TargetInfo), _default("target_info")),
    "configs": Method(_configs),
    "neighbours": Method(_configs),
    "estimate": Method(_is(int, float, type(None)), _default("estimate")),
    "packed_width": Method(_is(int), _default("packed_width")),
    "preferred_gemm": Method(_is(bool), _default("preferred_gemm")),
    "prepacks_gemm": Method(_is(bool), _default("prepacks_gemm")),
    "narrow_weight_rows": Method(_two_numbers, _default("narrow_weight_rows")),
    "streaming_parts": Method(_is(int), _default("streaming_parts")),
    "epilogue_reduction_width": Method(_is(int), _default("epilogue_reduction_width")),
    "emit": Method(_is(Source)),
    "build": Method(_nothing),
    "worker_options": Method(_mapping),
    "load": Method(_launchables),
    "extra_files": Method(_mapping),
    "review": Method(_is(Yes, No), _default("review")),
    "host": Method(_is(HostCall, type(None)), _default("host")),
    "host_program": Method(_is(Source, No), _refusal, refuses=True),
    "host_library": Method(_is(Source, No), _refusal, refuses=True),
    "synchronize": Method(_nothing),
    "machine": Method(_texts, _default("machine")),
    "describe": Method(_texts),
}
"""Every method of `Backend`."""
