"""Ten kinds of faults in every method of a plugin's device, and in what the methods return: one warning that
names plugin and method, or one clear error, and never the end of the process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from types import ModuleType
from typing import Any

import pytest
import torch

from fake_graphs import FakeDevice, FakeGraph, RecordingHost
from fake_plugins import plugin
from faults import FAULTS
from polyfuse.base.errors import BackendError
from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports
from polyfuse.plugin import Device, DeviceProperties, Extensions, PluginManager
from polyfuse.plugin.session.guarded_device import METHODS, guard_device, import_guarded
from polyfuse.runtime.devices import registry
from polyfuse.runtime.devices.device import Limits
from polyfuse.runtime.devices.registry import class_name, device_of, use_device
from polyfuse.runtime.graphs.memory import forget_graph_memory

X = torch.randn(4, 6)
Reports = list[tuple[str, str]]

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "guard": (0,),
    "use_stream": (None,),
    "copy": (torch.zeros(3), torch.ones(3)),
    "rounds": ("matmuls",),
    "set_switches": ({},),
    "collective_seconds": ("_c10d_functional.all_reduce", 1000),
}
ERRORS = {"guard", "event"}
"""Methods for which torch's module for the CPU has nothing."""
EMPTY = {"synchronize", "copy", "set_switches"}
MAY_BE_NONE = {"memory", "generator", "recorder"}
ANSWERS = {kind: fault for kind, fault in FAULTS.items() if kind.startswith(("None", "nons", "an answer"))}


def on_trial(method: str, fault: Callable[[], Any], base: type[Device] = Device) -> type[Device]:
    def broken(self: object, *args: object, **kwargs: object) -> object:
        return fault()

    return type("OnTrial", (base,), {method: broken})


def guarded(kind: type[Device], reported: Reports, strict: bool = False) -> Device:
    return guard_device(
        kind("cpu"), "toy", "cpu", lambda name, error, doing: reported.append((name, doing)), strict
    )


@pytest.mark.quick(24)
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_guarded(method: str, strict: bool) -> None:
    for kind, fault in FAULTS.items():
        reported: Reports = []
        call = getattr(guarded(on_trial(method, fault), reported, strict), method)
        arguments = ARGUMENTS.get(method, ())
        fine = (method in EMPTY and kind in ANSWERS) or (method in MAY_BE_NONE and kind == "None")
        if fine:
            assert call(*arguments) is None and not reported
        elif strict or method in ERRORS:
            with pytest.raises(BackendError, match="'toy'") as caught:
                call(*arguments)
            assert f"`{method}`" in str(caught.value) and not reported
        else:
            answer, again = call(*arguments), call(*arguments)
            doing = f"running its device's method `{method}`"
            assert reported == [("toy", doing)] * 2
            assert type(answer) is type(again) and not isinstance(answer, list)


def test_every_method_of_a_device_has_a_guard() -> None:
    public = {name for name, value in vars(Device).items() if callable(value) and not name.startswith("_")}
    assert public == set(METHODS)


def test_a_guarded_device_is_what_it_was() -> None:
    plain = on_trial("rounds", lambda: True)("cpu")
    made = guard_device(plain, "toy", "cpu", lambda *_: None, False)
    assert made is plain and made.rounds("matmuls") and class_name(made).endswith(":OnTrial")
    assert guard_device(made, "toy", "cpu", lambda *_: None, False) is made
    assert type(made).__mro__[2] is Device


FUNCTIONS: dict[str, tuple[tuple[Any, ...], Any]] = {
    "current": ((), 3),
    "allocator": (((2, 3), (3, 1), torch.float32), None),
}


@pytest.mark.parametrize("method", FUNCTIONS)
def test_a_function_that_fails_is_replaced(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "current", lambda self: lambda: 3)
    arguments, wanted = FUNCTIONS[method]
    for fault in FAULTS.values():
        reported: Reports = []
        trial = on_trial(method, lambda fault=fault: lambda *_: fault())
        function = getattr(guarded(trial, reported), method)()
        first, second = function(*arguments), function(*arguments)
        assert reported == [("toy", f"running its device's method `{method}`")]
        for found in (first, second):
            assert found == wanted if wanted is not None else found.shape == (2, 3)


def test_a_function_without_a_replacement_is_an_error() -> None:
    for fault in FAULTS.values():
        made = guarded(on_trial("stream_address", lambda fault=fault: lambda *_: fault()), [])
        with pytest.raises(BackendError, match=r"'toy'.*`stream_address`"):
            made.stream_address()(0)


class Part:
    """What a method returned, broken in one of its own methods."""

    def __init__(self, name: str, fault: Callable[[], Any]) -> None:
        self.__dict__[name] = lambda *_: fault()

    def record(self) -> None:
        """Nothing."""

    synchronize = reset = replay = follow = record

    def elapsed_time(self, end: Any) -> float:
        return 1.0

    def is_recording(self) -> bool:
        return False

    def new_pool(self) -> int:
        return 1


RAISING = {kind: fault for kind, fault in FAULTS.items() if kind not in ANSWERS}


def test_events_that_fail_are_errors() -> None:
    for name in ("record", "synchronize", "elapsed_time"):
        for fault in RAISING.values():
            event = guarded(on_trial("event", lambda name=name, fault=fault: Part(name, fault)), []).event()
            arguments = (event,) if name == "elapsed_time" else ()
            with pytest.raises(BackendError, match=r"'toy'.*`event`"):
                getattr(event, name)(*arguments)
    for fault in ANSWERS.values():
        event = guarded(on_trial("event", lambda fault=fault: Part("elapsed_time", fault)), []).event()
        with pytest.raises(BackendError, match="is no time"):
            event.elapsed_time(event)


def test_contexts_that_fail_are_errors_and_those_that_work_swallow_nothing() -> None:
    for fault in RAISING.values():

        @contextmanager
        def broken(fault: Callable[[], Any] = fault) -> Iterator[None]:
            fault()
            yield

        with (
            pytest.raises((BackendError, RuntimeError), match=r"toy|StopIteration") as caught,
            guarded(on_trial("guard", broken), []).guard(0),
        ):
            pytest.fail("it was entered")
        assert "`guard`" in "".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    for context in (nullcontext, torch.no_grad):
        with pytest.raises(KeyError), guarded(on_trial("guard", context), []).guard(0):
            raise KeyError


def test_what_the_device_reports_of_its_work_is_raised_as_it_is() -> None:
    def lost() -> None:
        raise torch.OutOfMemoryError("no memory")

    reported: Reports = []
    for method in ("synchronize", "copy"):
        with pytest.raises(torch.OutOfMemoryError, match="no memory") as caught:
            getattr(guarded(on_trial(method, lost), reported), method)(*ARGUMENTS.get(method, ()))
        assert f"`{method}`" in caught.value.__notes__[0] and "'toy'" in caught.value.__notes__[0]
    with pytest.raises(torch.OutOfMemoryError):
        trial = on_trial("allocator", lambda: lambda *_: lost())
        guarded(trial, reported).allocator()((2,), (1,), torch.int8)
    assert not reported


def test_an_interrupt_is_the_users() -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    for method in METHODS:
        with pytest.raises(KeyboardInterrupt):
            getattr(guarded(on_trial(method, stop), []), method)(*ARGUMENTS.get(method, ()))


def test_facts_of_a_class_that_are_nonsense_are_left_out() -> None:
    reported: Reports = []

    class Wrong(Device):
        is_host = "yes"
        network = float("nan")
        timeless_switches = None

        @property
        def recorded_collectives(self) -> Any:
            raise SystemExit(3)

        def __init__(self, device_type: str) -> None:
            """It forgets what it is for."""

    made = guarded(Wrong, reported)
    assert (made.type, made.is_host, made.network) == ("cpu", False, Device.network)
    assert made.recorded_collectives == made.timeless_switches == frozenset()
    names = {doing.split("`")[1] for _, doing in reported}
    assert names == {"is_host", "network", "timeless_switches", "recorded_collectives"}


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("count", -1),
        ("count", True),
        ("properties", DeviceProperties("x", units=None)),  # type: ignore[arg-type]
        ("properties", DeviceProperties("x", bandwidth=-1.0)),
        ("limits", Limits(missing=frozenset({"float64"}))),  # type: ignore[arg-type]
        ("collective_seconds", float("nan")),
        ("switches", {1: 2}),
        ("recorder", Part("record", lambda: None).is_recording),
    ],
)
def test_answers_out_of_range_are_faults(method: str, answer: object) -> None:
    reported: Reports = []
    found = getattr(guarded(on_trial(method, lambda: answer), reported), method)(*ARGUMENTS.get(method, ()))
    assert len(reported) == 1 and found is not answer


def test_stored_results_are_not_used_where_a_device_does_not_say_what_they_depend_on() -> None:
    """The same in this process, another one in every other."""
    made = guarded(on_trial("facts", FAULTS["an error"], on_trial("switches", FAULTS["an exit"])), [])
    assert made.facts() == made.facts() != Device("cpu").facts() and made.switches() == made.switches() != {}
    assert len(made.facts()) > 32


def f(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.sin(), -1).sum(0)


@contextmanager
def serving(made: Device) -> Iterator[None]:
    use_device("cpu", made)
    forget_graph_memory("cpu")
    try:
        yield
    finally:
        use_device("cpu", None)
        forget_graph_memory("cpu")


USED = ("is_recording", "limits", "recorder", "rounds", "switches", "facts", "properties", "current")


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["an exit", "None"])
def test_a_model_runs_whatever_of_its_device_fails(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: Reports = []
    body = {method: lambda *_, **__: FAULTS[kind]() for method in USED}
    made = guarded(type("OnTrial", (Host,), body), reported)
    with serving(made):
        run = torch.compile(f, backend="polyfuse", options={"device_graphs": True})
        for _ in range(3):
            torch.testing.assert_close(run(X), f(X))
    assert last_reports()[-1].kernels and {name for name, _ in reported} == {"toy"}


class Host(RecordingHost):
    def __init__(self, device_type: str) -> None:
        super().__init__(FakeDevice())


def test_every_part_of_a_recorder_is_guarded() -> None:
    for part in ("new_pool", "is_recording", "follow", "record", "reset", "replay"):
        for kind, fault in RAISING.items():
            reported: Reports = []
            graph = Part(part, fault)
            whole = type("Recorder", (Part,), {"record": lambda self, *_, graph=graph: (graph, [])})
            recorder = guarded(on_trial("recorder", partial(whole, part, fault)), reported).recorder()
            call = getattr(recorder, part, None)
            arguments: tuple[Any, ...] = (list, [], 1, ()) if part == "record" else ()
            if part in ("reset", "replay"):
                call = getattr(recorder.record(list, [], 1, ())[0], part)  # type: ignore[union-attr]
            if part in ("new_pool", "record", "replay"):
                with pytest.raises(BackendError, match=rf"'toy'.*{part}`"):
                    call(*arguments)
                continue
            assert not call(*arguments), kind
            assert len(reported) == 1 and reported[0][1].endswith(f"{part}`")


@pytest.mark.quick(2)
@pytest.mark.parametrize("part", ["new_pool", "is_recording", "record", "replay"])
def test_a_recorder_that_fails_costs_a_recording(
    part: str, monkeypatch: pytest.MonkeyPatch, warned: list[str]
) -> None:
    """Or, in the midst of a replay, an error that names it: the inputs are gone."""
    reported: Reports = []
    with serving(guarded(Host, reported)):
        inner = device_of("cpu").recorder()._inner  # type: ignore[union-attr]
        if part == "replay":
            monkeypatch.setattr(FakeGraph, part, lambda _: FAULTS["an exit"]())
        else:
            setattr(inner, part, lambda *_: FAULTS["an exit"]())
        run = torch.compile(f, backend="polyfuse", options={"device_graphs": True})
        run(X)
        if part == "replay":
            with pytest.raises(BackendError, match=r"'toy'.*`recorder\(\)\.record\(\)\.replay`"):
                run(X)
            return
        for _ in range(3):
            torch.testing.assert_close(run(X), f(X))
    texts = [doing for _, doing in reported] + warned
    assert any(f"{part}`" in text for text in texts)


def test_a_session_guards_what_a_plugin_brings(monkeypatch: pytest.MonkeyPatch, warned: list[str]) -> None:
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    broken = on_trial("limits", FAULTS["an exit"])
    free: dict[str, Any] = {"load": "", "device_types": (), "priority": {}}
    hooks = {"polyfuse_device": lambda device_type: broken(device_type) if device_type == "odd" else None}
    manager = PluginManager(Settings(), [plugin(monkeypatch, "toy", hooks, **free)])
    registry.find_devices_with(Extensions(manager).device)
    assert device_of("odd").limits() == device_of("odd:1").limits() == Limits()
    (text,) = warned
    assert "'toy'" in text and "`limits`" in text
    assert "`limits`" in manager.state("toy").reason


def test_another_process_guards_it_too(monkeypatch: pytest.MonkeyPatch, warned: list[str]) -> None:
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    home = ModuleType("device_on_trial")
    home.Imported = on_trial("count", FAULTS["an exit"])  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, home.__name__, home)
    assert import_guarded("odder", "device_on_trial:Imported").count() == 0
    (text,) = warned
    assert "device_on_trial:Imported" in text and "`count`" in text
