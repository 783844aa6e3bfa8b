"""pluggy's manager, with every implementation guarded: one that raises, ends the process, answers nonsense or
does not return is named once, left out from then on, and the others are called as usual.

What pluggy means by its marks holds: order, wrappers, first results, historic calls, optional hooks. Each
implementation is called by a guard, inside pluggy's own call.
"""

from __future__ import annotations

import contextvars
import copy
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Final, TypeVar, cast

import pluggy

from polyfuse.base.errors import BackendError
from polyfuse.base.text import brief, join_words, nearest
from polyfuse.plugin.hooks.answers import MUST_ANSWER, checked, parts
from polyfuse.plugin.hooks.faults import is_fault
from polyfuse.plugin.hooks.specs import PROJECT

_FUNCTIONS: Final = (FunctionType, MethodType, staticmethod, classmethod)

T = TypeVar("T")
Report = Callable[[str, str, BaseException], None]


class HookTimeoutError(Exception):
    """An implementation of a hook did not return in time."""


@dataclass(frozen=True)
class Answer:
    """What a plugin answered."""

    plugin: str
    value: Any


@dataclass(frozen=True)
class Answers:
    """The answers to one call of a hook, in pluggy's order, after wrappers. An answer that a wrapper put
    there is the wrapper's plugin's.

    Attributes:
        given: the answers.
        items: what the answers consist of, where they are sequences or mappings.
        faults: plugins that were left out of this call, each with what was wrong.
    """

    given: tuple[Answer, ...]
    items: tuple[Answer, ...] = ()
    faults: tuple[tuple[str, BaseException], ...] = ()

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.given)


@dataclass
class _Call:
    """One call of a hook, while it runs and after it."""

    hook: str
    made: list[Answer] = field(default_factory=list)
    faults: list[tuple[str, BaseException]] = field(default_factory=list)
    running: list[str] = field(default_factory=list)

    def note(self, plugin: str, answer: object) -> None:
        """Remember who made an answer and its parts, unless somebody made them before."""
        for value in (answer, *parts(answer)):
            if not self.author(value):
                self.made.append(Answer(plugin, value))

    def author(self, value: object) -> str:
        """The plugin that made an answer or a part of one; empty if none did."""
        return next((item.plugin for item in self.made if item.value is value), "")


class GuardedHooks(pluggy.PluginManager):
    """The hooks of one session.

    Args:
        report: called with the plugin, the hook and the error when an implementation is left out.
        seconds: how long a call may take, in a thread of its own. A thread whose implementation hangs is
            abandoned, and the call repeated without that one. 0: any time, in the thread of the caller.
    """

    def __init__(self, report: Report, seconds: float = 0.0) -> None:
        self._report = report
        self._seconds = seconds
        self._left_out: dict[tuple[str, str], BaseException] = {}
        self._latest = threading.local()
        self._registering: tuple[object, frozenset[str]] = (None, frozenset())
        super().__init__(PROJECT)

    def check_pending(self) -> None:
        """Raise `pluggy.PluginValidationError` over a hook that does not exist, with those of like names."""
        callers = {name: hook for name, hook in vars(self.hook).items() if not name.startswith("_")}
        prefix = f"{PROJECT}_"  # which would make any two names look alike
        known = {name.removeprefix(prefix): name for name, hook in callers.items() if hook.has_spec()}
        for name, hook in callers.items():
            needed = [impl for impl in hook.get_hookimpls() if not impl.optionalhook]
            if needed and not hook.has_spec():
                like = join_words([known[n] for n in nearest(name.removeprefix(prefix), known)], "or")
                fix = f"did you mean {like}?" if like else "docs/reference/hooks.md lists them all"
                raise pluggy.PluginValidationError(needed[0].plugin, f"there is no hook {name}; {fix}")

    def ask(self, hook: str, without: Iterable[str] = (), **arguments: object) -> Answers:
        """Call a hook, and return its answers with the plugins that gave them.

        Args:
            hook: its name.
            without: names of plugins that are not asked.
            arguments: all that the hook is specified with.
        """
        removed = [plugin for plugin in map(self.get_plugin, without) if plugin is not None]
        caller = self.subset_hook_caller(hook, removed)
        result = caller(**arguments)
        call: _Call = self._latest.call
        values = result if isinstance(result, list) else [] if result is None else [result]
        given = tuple(Answer(call.author(value), value) for value in values)
        items = tuple(Answer(call.author(item), item) for value in values for item in parts(value))
        return Answers(given, items, tuple(call.faults))

    def bounded(self, run: Callable[[], T], name: str) -> T:
        """Return the result of a function that may hang.

        Args:
            name: of the thread in which it runs.

        Raises:
            HookTimeoutError: it did not return in time.
        """
        (found,) = self.bounded_each((run,), name)
        if isinstance(found, BaseException):
            raise found
        return found

    def bounded_each(self, runs: Sequence[Callable[[], T]], name: str) -> list[T | BaseException]:
        """Return the result of each of several functions that may hang, or what it raised. One thread runs
        all of them, since to start one takes longer than most of them, and another one goes on after one that
        hangs.

        Args:
            name: of the threads.
        """
        done: list[T | BaseException] = []
        if not self._seconds:
            _run_each(runs, done, threading.Event())
        while len(done) < len(runs):
            outcomes: list[T | BaseException] = []
            abandoned = threading.Event()
            arguments = (_run_each, runs[len(done) :], outcomes, abandoned)
            context = contextvars.copy_context()
            thread = threading.Thread(target=context.run, args=arguments, name=name, daemon=True)
            thread.start()
            before = -1
            while thread.is_alive() and before < len(outcomes):
                before = len(outcomes)
                thread.join(self._seconds)
            abandoned.set()
            done += outcomes[: len(runs) - len(done)]
            if thread.is_alive() and len(done) < len(runs):
                done.append(HookTimeoutError(f"it did not return within {self._seconds:g} seconds"))
        return done

    def implements(self, plugin: str, hook: str) -> bool:
        """Return whether a plugin has an implementation of a hook."""
        return any(impl.plugin_name == plugin for impl in getattr(self.hook, hook).get_hookimpls())

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        """As pluggy's, which takes long to find that most attributes of a module or object bear no mark."""
        if self._registering[0] is not plugin:
            self._registering = (plugin, _marked(plugin))
        return super().parse_hookimpl_opts(plugin, name) if name in self._registering[1] else None

    def register(self, plugin: object, name: str | None = None) -> str | None:
        """As pluggy's."""
        try:
            return super().register(plugin, name)
        finally:
            self._registering = (None, frozenset())

    def unregister(self, plugin: object | None = None, name: str | None = None) -> Any | None:
        """As pluggy's, with the code generator that the manifest names; a plugin that is registered again
        begins anew.
        """
        gone = name or (self.get_name(plugin) if plugin is not None else None)
        for key in [key for key in self._left_out if key[0] == gone]:
            del self._left_out[key]
        if gone is not None and self.get_plugin(f"{gone}.load") is not None:
            super().unregister(name=f"{gone}.load")
        return super().unregister(plugin, name)

    def _hookexec(
        self,
        hook_name: str,
        methods: Sequence[pluggy.HookImpl],
        kwargs: Mapping[str, object],
        firstresult: bool,
    ) -> object | list[object]:
        """What pluggy calls for every call of a hook."""
        execute = super()._hookexec
        while True:
            call = _Call(hook_name)
            known = {i.plugin_name: self._left_out.get((i.plugin_name, hook_name)) for i in methods}
            guarded = [self._guarded(i, call, firstresult) for i in methods if known[i.plugin_name] is None]
            run = partial(execute, hook_name, guarded, kwargs, firstresult)
            try:
                return self.bounded(run, f"polyfuse-{hook_name}") if guarded else run()
            except HookTimeoutError as error:
                if not call.running:
                    raise
                call.faults.append((call.running[-1], error))
            finally:
                # in the caller's thread: it may hold locks that the observer of faults takes
                self._leave_out(call)
                call.faults += [(name, error) for name, error in known.items() if error is not None]
                self._latest.call = call

    def _guarded(self, impl: pluggy.HookImpl, call: _Call, firstresult: bool) -> pluggy.HookImpl:
        """An implementation that raises nothing, with the same marks."""
        made = copy.copy(impl)
        if impl.wrapper:
            function: Callable[..., Any] = partial(self._wrapper, impl, call, firstresult)
        elif impl.hookwrapper:
            function = partial(self._old_wrapper, impl, call, firstresult)
        else:
            function = partial(self._plain, impl, call)
        object.__setattr__(made, "function", function)
        return made

    def _plain(self, impl: pluggy.HookImpl, call: _Call, *args: object, **kwargs: object) -> object:
        call.running.append(impl.plugin_name)
        try:
            answer = impl.function(*args, **kwargs)
            if answer is None:
                if call.hook in MUST_ANSWER:
                    raise TypeError("it returned None")
                return None
            answer = checked(call.hook, answer, impl.plugin_name)
            call.note(impl.plugin_name, answer)
            return answer
        except BaseException as error:
            if not is_fault(error):
                raise
            self._fault(impl, call, error)
            return None
        finally:
            call.running.pop()

    def _wrapper(
        self, impl: pluggy.HookImpl, call: _Call, firstresult: bool, *args: object, **kwargs: object
    ) -> Generator[None, Any, Any]:
        steps = self._begin(impl, call, args, kwargs)
        try:
            before = yield
        except BaseException as error:  # what no guard keeps: an interrupt
            if steps is None:
                raise
            return steps.throw(error)
        if steps is None:
            return before
        return self._resumed(impl, call, firstresult, before, steps, _shown(before), lambda given: given)

    def _old_wrapper(
        self, impl: pluggy.HookImpl, call: _Call, firstresult: bool, *args: object, **kwargs: object
    ) -> Generator[None, pluggy.Result[Any], None]:
        steps = self._begin(impl, call, args, kwargs)
        outcome = yield
        if steps is None or outcome.excinfo is not None:
            return
        before = outcome.get_result()
        outcome.force_result(_shown(before))
        given = lambda _: outcome.get_result()  # noqa: E731
        outcome.force_result(self._resumed(impl, call, firstresult, before, steps, outcome, given))

    def _resumed(
        self,
        impl: pluggy.HookImpl,
        call: _Call,
        firstresult: bool,
        before: Any,
        steps: Generator[Any, Any, Any],
        sent: object,
        given: Callable[[Any], Any],
    ) -> Any:
        """What a wrapper of either kind leaves of an answer; the answer as it was where the wrapper fails.

        Args:
            sent: what its `yield` gives.
            given: what it leaves, by what it returned.
        """
        call.running.append(impl.plugin_name)
        try:
            try:
                steps.send(sent)
            except StopIteration as stop:
                return self._replaced(impl, call, firstresult, before, given(stop.value))
            steps.close()
            raise TypeError("it yields twice")
        except BaseException as error:
            if not is_fault(error):
                raise
            self._fault(impl, call, error)
            return before
        finally:
            call.running.pop()

    def _begin(
        self, impl: pluggy.HookImpl, call: _Call, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Generator[Any, Any, Any] | None:
        """A wrapper that has come to its `yield`; None if it has not."""
        call.running.append(impl.plugin_name)
        try:
            steps = cast("Generator[Any, Any, Any]", impl.function(*args, **kwargs))
            next(steps)
        except StopIteration:
            self._fault(impl, call, TypeError("it does not yield"))
            return None
        except BaseException as error:
            if not is_fault(error):
                raise
            self._fault(impl, call, error)
            return None
        finally:
            call.running.pop()
        return steps

    def _replaced(
        self, impl: pluggy.HookImpl, call: _Call, firstresult: bool, before: Any, after: Any
    ) -> Any:
        """What a wrapper returned in place of an answer, or of a list of answers, checked."""
        if after is None and before is not None:
            raise TypeError("it returned None; a wrapper returns what `yield` gave it, or what replaces that")
        if after is None:
            return None
        if not firstresult and not isinstance(after, Sequence):
            raise TypeError(f"a {type(after).__name__} is no list of answers")
        out = [
            value if call.author(value) else checked(call.hook, value, impl.plugin_name)
            for value in ([after] if firstresult else after)
        ]
        for value in out:
            call.note(impl.plugin_name, value)
        return out[0] if firstresult else out

    def _fault(self, impl: pluggy.HookImpl, call: _Call, error: BaseException) -> None:
        call.faults.append((impl.plugin_name, error))

    def _leave_out(self, call: _Call) -> None:
        for plugin, error in call.faults:
            self._left_out[plugin, call.hook] = error
            self._report(plugin, call.hook, error)


def _run_each(
    runs: Sequence[Callable[[], T]], outcomes: list[T | BaseException], abandoned: threading.Event
) -> None:
    """Note what each function returns or raises, until nobody waits for it any more."""
    for run in runs:
        try:
            found: T | BaseException = run()
        except BaseException as error:
            if not is_fault(error):
                raise
            found = error
            if not isinstance(error, (Exception, SystemExit)):
                found = BackendError(f"it raised {brief(error)} where no user interrupts")
                found.__cause__ = error
        if abandoned.is_set():
            return
        outcomes.append(found)


def _marked(plugin: object) -> frozenset[str]:
    """The names of attributes of a plugin that are, or may hide, a function with pluggy's mark. None is
    computed for that."""
    found = _marked_in(getattr(plugin, "__dict__", {}))
    classes = (type(plugin),) if isinstance(plugin, ModuleType) else _bases(plugin)
    return found.union(*map(_marked_of_class, classes))


@lru_cache(maxsize=256)
def _marked_of_class(kind: type) -> frozenset[str]:
    return _marked_in(vars(kind))


def _marked_in(names: Mapping[str, object]) -> frozenset[str]:
    return frozenset(
        name
        for name, value in names.items()
        if (isinstance(value, MemberDescriptorType) and name != "__dict__")
        or (isinstance(value, _FUNCTIONS) and _mark(value) is not None)
    )


def _bases(plugin: object) -> tuple[type, ...]:
    own = plugin.__mro__ if isinstance(plugin, type) else ()
    return (*own, *type(plugin).__mro__)


def _mark(function: Any) -> object:
    found = getattr(function, f"{PROJECT}_impl", None)
    return getattr(getattr(function, "__func__", None), f"{PROJECT}_impl", None) if found is None else found


def _shown(answers: Any) -> Any:
    """Answers as a wrapper sees them: a list of its own."""
    return list(answers) if isinstance(answers, list) else answers
