"""The guarded hooks: what pluggy means by its marks holds, and what one implementation does costs only that
one.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pluggy
import pytest

from fake_plugins import plugin
from polyfuse.base.errors import BackendError
from polyfuse.base.settings import Settings
from polyfuse.plugin import (
    API_VERSION,
    Backend,
    Codegen,
    Finding,
    Manifest,
    PluginManager,
    State,
    hookimpl,
    register,
    unregister,
)
from polyfuse.plugin.hooks import guarded, specs
from polyfuse.plugin.hooks.guarded import GuardedHooks, HookTimeoutError

hookspec = pluggy.HookspecMarker(specs.PROJECT)
FREE = {"load": "", "device_types": (), "priority": {}}


class Specs:
    @hookspec
    def each(self, x: int) -> list[str]:  # type: ignore[empty-body]
        """A hook that all answer."""

    @hookspec(firstresult=True)
    def first(self, x: int) -> str:  # type: ignore[empty-body]
        """A hook whose first answer counts."""

    @hookspec(historic=True)
    def past(self, x: int) -> None:
        """A hook whose calls later plugins get too."""


@pytest.fixture
def reported() -> list[tuple[str, str, BaseException]]:
    return []


class Thread(threading.Thread):
    """A thread whose limit of time counts from when it hangs: until then, a busy machine takes any time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.hangs = threading.Event()

    def join(self, timeout: float | None = None) -> None:
        while self.is_alive() and not self.hangs.is_set():
            super().join(0.01)
        super().join(timeout)


def hang(forever: Callable[[], object] = lambda: threading.Event().wait()) -> None:
    """Do not return."""
    thread = threading.current_thread()
    assert isinstance(thread, Thread)
    thread.hangs.set()
    forever()


@pytest.fixture
def hooks(reported, monkeypatch) -> GuardedHooks:
    modules = {"Thread": Thread, "Event": threading.Event, "local": threading.local}
    monkeypatch.setattr(guarded, "threading", SimpleNamespace(**modules))
    made = GuardedHooks(lambda *fault: reported.append(fault), 0.4)
    made.add_hookspecs(Specs)
    return made


def answering(value: object, hook: str = "each", **marks: bool) -> object:
    """A plugin with one implementation that returns a value or raises it."""

    def implementation(x: int) -> object:
        if isinstance(value, BaseException):
            raise value
        return value

    return SimpleNamespaceWithHash(**{hook: hookimpl(**marks)(implementation)})


def answering_slowly(first: Callable[[], None]) -> object:
    """A plugin whose implementation calls a function and then takes long."""

    def each(x: int) -> None:
        first()
        time.sleep(0.2)

    return SimpleNamespaceWithHash(each=hookimpl(each))


class SimpleNamespaceWithHash(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]


def test_order_is_pluggys(hooks):
    for name, marks in {"a": {}, "b": {"trylast": True}, "c": {"tryfirst": True}, "d": {}}.items():
        hooks.register(answering(name, **marks), name)
    assert hooks.hook.each(x=1) == ["c", "d", "a", "b"]
    assert [answer.plugin for answer in hooks.ask("each", x=1)] == ["c", "d", "a", "b"]
    assert [answer.plugin for answer in hooks.ask("each", without=["d", "unknown"], x=1)] == ["c", "a", "b"]
    hooks.unregister(name="c")
    hooks.set_blocked("a")
    assert hooks.hook.each(x=1) == ["d", "b"]
    assert hooks.register(answering("a"), "a") is None


def test_wrappers_see_and_change_what_others_answer(hooks):
    seen: list[object] = []

    class Wrapper:
        @hookimpl(wrapper=True)
        def each(self, x):
            answers = yield
            seen.append((x, list(answers)))
            return [*answers, "mine"]

        @hookimpl(wrapper=True)
        def first(self):
            return (yield) + "!"

    class Old:
        @hookimpl(hookwrapper=True, tryfirst=True)
        def each(self):
            outcome = yield
            outcome.force_result([*outcome.get_result(), "old"])

    hooks.register(answering("a"), "a")
    hooks.register(answering("1", "first"), "one")
    hooks.register(answering("2", "first"), "two")
    hooks.register(Wrapper(), "wrapper")
    hooks.register(Old(), "old")
    found = hooks.ask("each", x=7)
    assert [(a.plugin, a.value) for a in found] == [("a", "a"), ("wrapper", "mine"), ("old", "old")]
    assert seen == [(7, ["a"])] and hooks.hook.first(x=1) == "2!"


def test_historic_calls_reach_later_plugins_in_isolation(hooks, reported):
    seen: list[int] = []

    class Late:
        @hookimpl
        def past(self, x):
            seen.append(x)
            raise RuntimeError("too late")

    hooks.hook.past.call_historic(kwargs={"x": 3})
    hooks.register(Late(), "late")
    assert seen == [3] and [(fault[0], str(fault[2])) for fault in reported] == [("late", "too late")]


def test_optional_hooks_may_be_unknown(hooks):
    hooks.register(answering(1, "unheard_of", optionalhook=True), "optional")
    hooks.check_pending()
    hooks.register(answering(1, "unheard_of_too"), "misspelt")
    with pytest.raises(pluggy.PluginValidationError):
        hooks.check_pending()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class OfNoKind(BaseException):
    pass


@pytest.mark.parametrize(
    "fault",
    [ValueError("bad"), SystemExit(3), MemoryError(), RecursionError(), StopIteration(), Unprintable()],
)
@pytest.mark.parametrize("hook", ["each", "first"])
def test_one_that_raises_is_left_out(hooks, reported, fault, hook):
    hooks.register(answering("good", hook), "good")
    hooks.register(answering(fault, hook), "bad")
    for _ in range(3):
        found = hooks.ask(hook, x=1)
        assert [a.value for a in found] == ["good"] and found.faults == (("bad", fault),)
    assert reported == [("bad", hook, fault)]
    hooks.unregister(name="bad")
    hooks.register(answering("mended", hook), "bad")
    assert next(a.value for a in hooks.ask(hook, x=1)) == "mended"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OfNoKind()])
def test_an_interrupt_in_the_main_thread_is_the_users(reported, error):
    """Python runs handlers of signals there, and nowhere else."""
    hooks = GuardedHooks(lambda *fault: reported.append(fault), 0.0)
    hooks.add_hookspecs(Specs)
    hooks.register(answering(error), "user")
    with pytest.raises(type(error)):
        hooks.hook.each(x=1)
    assert not reported


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OfNoKind()])
def test_an_interrupt_that_an_implementation_raises_is_its_fault(hooks, reported, error):
    """Hooks run in a thread of their own, where no user interrupts."""
    hooks.register(answering("good"), "good")
    hooks.register(answering(error), "bad")
    for _ in range(2):
        assert [a.value for a in hooks.ask("each", x=1)] == ["good"]
    assert reported == [("bad", "each", error)]
    with pytest.raises(BackendError, match="no user interrupts"):
        hooks.bounded(answering(error).each.__get__(1), "polyfuse-test")


def test_a_user_who_interrupts_a_hook_ends_the_program(hooks, reported):
    """The main thread waits for the hook's, and has the handler of the signal."""
    hooks.register(answering_slowly(lambda: signal.raise_signal(signal.SIGINT)), "slow")
    # workers of a test run in parallel ignore the signal
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            hooks.hook.each(x=1)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert not reported


@pytest.mark.parametrize("forever", [lambda: time.sleep(60), lambda: threading.Event().wait()])
def test_one_that_hangs_is_left_out(hooks, reported, forever):
    calls: list[int] = []

    class Hanging:
        @hookimpl
        def each(self):
            calls.append(1)
            hang(forever)

    hooks.register(answering("before"), "before")
    hooks.register(Hanging(), "hanging")
    hooks.register(answering("after"), "after")
    for _ in range(2):
        assert hooks.hook.each(x=1) == ["after", "before"]
    assert len(calls) == 1
    ((name, hook, error),) = reported
    assert (name, hook) == ("hanging", "each") and "within 0.4 seconds" in str(error)


def test_of_several_in_one_thread_those_that_hang_cost_only_themselves(hooks):
    names: list[str] = []

    def noting(value: int) -> int:
        names.append(threading.current_thread().name)
        return value

    def failing() -> int:
        raise SystemExit(3)

    runs = [lambda: noting(1), hang, failing, lambda: noting(2), hang]
    first, hung, exited, second, last = hooks.bounded_each(runs, "several")
    assert (first, second) == (1, 2) and set(names) == {"several"}
    assert isinstance(exited, SystemExit)
    assert isinstance(hung, HookTimeoutError) and isinstance(last, HookTimeoutError)
    assert hooks.bounded_each([], "none") == []


def wrapping(function: Callable[[], Any]) -> object:
    return SimpleNamespaceWithHash(each=hookimpl(wrapper=True)(function))


def before():
    raise ValueError("before")
    yield


def after():
    yield
    raise ValueError("after")


def twice():
    yield
    yield


def never():
    if False:
        yield


def nothing():
    yield


def nonsense():
    yield
    return 7


def hanging():
    yield
    hang()


FAULTY = [before, after, twice, never, hanging]


@pytest.mark.parametrize(
    ("function", "old"),
    [(nothing, False), (nonsense, False), *((f, old) for f in FAULTY for old in (False, True))],
)
def test_a_faulty_wrapper_changes_nothing(hooks, reported, function, old):
    faulty = SimpleNamespaceWithHash(each=hookimpl(wrapper=not old, hookwrapper=old)(function))
    hooks.register(answering("a"), "a")
    hooks.register(faulty, "faulty")
    for _ in range(2):
        assert hooks.hook.each(x=1) == ["a"]
    ((name, hook, _),) = reported
    assert (name, hook) == ("faulty", "each")


class Ending(list[str]):
    """A list of texts that ends the process when it is read."""

    def __iter__(self) -> Any:
        raise SystemExit(3)


@pytest.mark.parametrize("old", [False, True])
def test_a_wrapper_whose_answer_ends_the_process_is_left_out(monkeypatch, old):
    def new_wrapper():
        yield
        return [Ending(["mine"])]

    def old_wrapper():
        outcome = yield
        outcome.force_result([Ending(["mine"])])

    wrapper = hookimpl(wrapper=not old, hookwrapper=old)(old_wrapper if old else new_wrapper)
    points = [plugin(monkeypatch, "a", {"polyfuse_cache_key": lambda: ("fact",)}, **FREE)]
    register(SimpleNamespaceWithHash(polyfuse_cache_key=wrapper), "ending")
    try:
        found = PluginManager(Settings(), points).hooks.ask("polyfuse_cache_key", settings=Settings())
    finally:
        unregister("ending")
    assert [(answer.plugin, answer.value) for answer in found] == [("a", ("fact",))]
    ((name, error),) = found.faults
    assert name == "ending" and isinstance(error, SystemExit)


def test_nonsense_is_no_answer(monkeypatch, warnings_seen):
    points = [
        plugin(monkeypatch, "b", {"polyfuse_codegen": lambda: 3}, **FREE),
        plugin(monkeypatch, "d", {"polyfuse_codegen": lambda: dict}, **FREE),
        plugin(monkeypatch, "e", {"polyfuse_codegen": lambda: "nowhere"}, **FREE),
    ]
    manager = PluginManager(Settings(), points)
    assert manager.order("cpu") == ()
    texts = sorted(warnings_seen())
    assert [f"'{name}'" in text for name, text in zip("bde", texts, strict=True)] == [True] * 3
    for text, words in zip(texts, ["neither", "not derived", "no 'pack"], strict=True):
        assert words in text


class Recorder:
    """A plugin with a wrapper around every hook, which notes the order of calls."""

    def __init__(self, order: list[str], name: str) -> None:
        self.order, self.name = order, name


def _recording(hook: str) -> Callable[..., Any]:
    def wrapper(self: Recorder) -> Any:
        self.order.append(f"{self.name} {hook} {{")
        answer = yield
        self.order.append(f"{self.name} {hook} }}")
        return answer

    return hookimpl(wrapper=True, specname=hook)(wrapper)


HOOKS = [name for name in vars(specs) if name.startswith("polyfuse_")]
ARGUMENTS = {"device_type": "cpu", "backend": "toy", "settings": Settings(), "decision": "fused"}
for _hook in HOOKS:
    setattr(Recorder, f"around_{_hook}", _recording(_hook))


@pytest.mark.parametrize("hook", HOOKS)
def test_wrappers_around_every_hook(monkeypatch, hook):
    order: list[str] = []
    register(Recorder(order, "inner"), "inner")
    register(Recorder(order, "outer"), "outer")
    try:
        manager = PluginManager(Settings(), [plugin(monkeypatch)])
    finally:
        unregister("inner")
        unregister("outer")
    assert manager.order("cpu") == ("toy",) and manager.state("inner").state is State.AVAILABLE
    order.clear()
    wanted = {name: ARGUMENTS[name] for name in getattr(manager.hooks.hook, hook).spec.argnames}
    assert not manager.ask(hook, **wanted).faults
    assert order == [f"outer {hook} {{", f"inner {hook} {{", f"inner {hook} }}", f"outer {hook} }}"]


def test_a_wrapper_replaces_code_generators_and_manifests(monkeypatch):
    import toy_backend

    class Other(toy_backend.ToyBackend):
        pass

    class Wrapper:
        @hookimpl(wrapper=True)
        def polyfuse_codegen(self):
            from dataclasses import replace

            return [replace(found, load=Other) for found in (yield)]

    register(Wrapper(), "wrapper")
    try:
        manager = PluginManager(Settings(), [plugin(monkeypatch)])
    finally:
        unregister("wrapper")
    (backend,) = manager.backends("cpu")
    assert isinstance(backend, Other) and backend.name == "toy"


def test_a_program_registers_plugins_of_its_own(monkeypatch):
    import toy_backend

    class Mine:
        @hookimpl
        def polyfuse_codegen(self, device_type) -> Codegen:
            return Codegen(toy_backend.ToyBackend, priority=99)

        @hookimpl
        def polyfuse_doctor(self):
            return [Finding("mine", True, "well")]

    mine = Mine()
    assert register(mine) == "Mine"
    with pytest.raises(ValueError, match="already"):
        register(mine, "another")
    with pytest.raises(ValueError, match="another name"):
        register(Mine(), "Mine")
    manager = PluginManager(Settings(), [plugin(monkeypatch)])
    unregister(mine)
    with pytest.raises(ValueError, match="not registered"):
        unregister(mine)
    assert manager.order("cpu") == ("Mine", "toy")
    assert isinstance(manager.backend("Mine"), Backend) and manager.module("Mine") == __name__
    assert [a.plugin for a in manager.ask("polyfuse_doctor", settings=Settings())] == ["Mine"]
    assert PluginManager(Settings(), [plugin(monkeypatch)]).order("cpu") == ("toy",)


def test_what_has_no_hash_is_no_plugin():
    with pytest.raises(TypeError, match="a list has no hash"):
        register([])


def test_what_a_program_registers_replaces_an_installed_plugin(monkeypatch):
    @hookimpl
    def polyfuse_manifest():
        return Manifest("toy", "5", "me", API_VERSION)

    register(SimpleNamespaceWithHash(polyfuse_manifest=polyfuse_manifest))
    try:
        manager = PluginManager(Settings(), [plugin(monkeypatch)])
    finally:
        unregister("toy")
    assert manager.state("toy").version == "5" and manager.order("cpu") == ()


def test_installed_plugins_are_called_by_priority_then_by_name(monkeypatch):
    def says(settings):
        return [Finding("x", True, "")]

    hooks = {"polyfuse_doctor": says}
    points = [
        plugin(monkeypatch, "z", hooks, **FREE),
        plugin(monkeypatch, "y", hooks, **FREE),
        plugin(monkeypatch, "low", hooks, priority={"cpu": 1}),
        plugin(monkeypatch, "high", hooks, priority={"cpu": 5}),
    ]

    def order(**options: Any) -> list[str]:
        manager = PluginManager(Settings(**options), points)
        return [answer.plugin for answer in manager.ask("polyfuse_doctor", settings=Settings())]

    assert order() == ["high", "low", "y", "z"]
    assert order(backends=("low", "high")) == ["low", "high", "y", "z"]


class Marked:
    """Implementations wherever Python keeps methods, and what looks like one when it is computed."""

    __slots__ = ("_own", "past")

    @hookimpl(specname="each")
    def method(self, x: int) -> str:
        return "method"

    @staticmethod
    @hookimpl(specname="each")
    def static(x: int) -> str:
        return "static"

    @hookimpl(specname="each")
    @classmethod
    def of_class(cls, x: int) -> str:
        return "of class"

    @property
    def first(self) -> str:
        raise AssertionError("a property was computed")


class Derived(Marked):
    """What a base class defines, and a mark that it does not take over."""

    @hookimpl(specname="each")
    def own(self, x: int) -> str:
        return "own"

    def method(self, x: int) -> str:
        raise AssertionError("it bears no mark")


@pytest.mark.parametrize(
    ("kind", "answers"),
    [(Marked, ["method", "of class", "static"]), (Derived, ["of class", "own", "static"])],
)
def test_marks_are_found_wherever_methods_are(hooks, reported, kind, answers):
    made = kind()
    made.past = hookimpl(lambda x: reported.append(("past", "", ValueError(x))))
    hooks.register(made, "a")
    assert sorted(hooks.hook.each(x=1)) == answers
    hooks.hook.past.call_historic(kwargs={"x": 1})
    assert [fault[0] for fault in reported] == ["past"]


def test_only_marked_attributes_are_looked_at_closely(monkeypatch):
    """pluggy's own look takes longer than all else when a session registers plugins."""
    looked: list[str] = []
    real = pluggy.PluginManager.parse_hookimpl_opts

    def noting(self: object, plugin: object, name: str) -> object:
        looked.append(name)
        return real(self, plugin, name)  # type: ignore[arg-type]

    monkeypatch.setattr(pluggy.PluginManager, "parse_hookimpl_opts", noting)
    PluginManager(Settings(), [plugin(monkeypatch, "toy", {"polyfuse_doctor": lambda: ()})])
    # the core's timer, the plugin's two hooks, and the code generator that the manifest names
    answering_hooks = ["polyfuse_codegen", "polyfuse_doctor", "polyfuse_manifest", "polyfuse_timer"]
    assert sorted(looked) == answering_hooks
