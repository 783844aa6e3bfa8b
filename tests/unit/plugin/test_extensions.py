"""What plugins add besides code generators: who is asked, and what a faulty answer costs."""

from __future__ import annotations

import pytest

from fake_plugins import plugin
from polyfuse.base.errors import BackendUnavailableError
from polyfuse.base.settings import Settings
from polyfuse.plugin import Device, Extensions, Lowering, PluginManager, Rewrite, State

FREE = {"load": "", "device_types": (), "priority": {}}
"""A manifest without a code generator."""


def lowering(ctx, node, value):
    return value


def offering(monkeypatch, name, rows, **changes):
    """A plugin that lowers the operators named in `rows`."""
    hooks = {"polyfuse_lowerings": lambda: dict.fromkeys(rows, lowering)}
    return plugin(monkeypatch, name, hooks, **changes)


def plugins_of(extensions: Extensions, op: str, device_type: str = "cpu") -> list[str]:
    return [offer.plugin for offer in extensions.lowerings(device_type).get(op, ())]


def extensions_of(points, **options) -> Extensions:
    return Extensions(PluginManager(Settings(**options), points))


def test_the_backend_in_charge_comes_before_plugins_without_one(monkeypatch):
    points = [
        offering(monkeypatch, "aaa", ["mylib.op"], **FREE),
        offering(monkeypatch, "slow", ["mylib.op"], priority={"cpu": 1}),
        offering(monkeypatch, "fast", ["mylib.op"], priority={"cpu": 9}),
    ]
    assert plugins_of(extensions_of(points), "mylib.op") == ["fast", "aaa"]
    assert plugins_of(extensions_of(points, backends=("slow", "fast")), "mylib.op") == ["slow", "aaa"]
    assert plugins_of(extensions_of(points, disable=("aaa", "fast")), "mylib.op") == ["slow"]
    assert plugins_of(extensions_of(points), "mylib.op", "tpu") == ["aaa"]
    assert plugins_of(extensions_of(points), "mylib.other") == []


def test_specialists_come_before_the_backend_in_charge(monkeypatch):
    points = [
        offering(monkeypatch, "special", ["mylib.op"], priority={"cpu": 1}, specialist=True),
        offering(monkeypatch, "fast", ["mylib.op"], priority={"cpu": 9}),
        offering(monkeypatch, "elsewhere", ["mylib.op"], device_types=("tpu",), specialist=True),
    ]
    assert plugins_of(extensions_of(points), "mylib.op") == ["special", "fast"]
    assert plugins_of(extensions_of(points, backends=("fast",)), "mylib.op") == ["fast"]
    assert plugins_of(extensions_of(points, backends=("fast", "special")), "mylib.op") == ["special", "fast"]
    assert plugins_of(extensions_of(points, disable=("special",)), "mylib.op") == ["fast"]


def test_each_is_asked_once_a_device_type_and_only_of_what_it_wants_to_know(monkeypatch):
    asked = []

    def rows(device_type):
        asked.append(device_type)
        return {"mylib.op": Lowering(lowering, passes=2)}

    extensions = extensions_of([plugin(monkeypatch, "rows", {"polyfuse_lowerings": rows}, **FREE)])
    for device_type in ("cpu", "cpu", "tpu"):
        (offer,) = extensions.lowerings(device_type)["mylib.op"]
        assert offer.item.passes == 2
    assert asked == ["cpu", "tpu"]


@pytest.mark.parametrize(
    ("hook", "answer", "words"),
    [
        ("polyfuse_lowerings", ["mylib.op"], "no mapping"),
        ("polyfuse_lowerings", {"mylib.op": 3}, "not the name of an operator with a function"),
        ("polyfuse_lowerings", {3: lowering}, "not the name of an operator with a function"),
        ("polyfuse_rewrites", ["cancel"], "a str is no Rewrite"),
        ("polyfuse_rewrites", 3, "a int is no Rewrite"),
        ("polyfuse_rewrites", [Rewrite("r", (), lowering, stages=("last",))], "'last', which does not exist"),
    ],
)
def test_a_faulty_answer_is_left_out_with_one_warning(monkeypatch, warnings_seen, hook, answer, words):
    points = [
        plugin(monkeypatch, "faulty", {hook: lambda: answer}, **FREE),
        plugin(monkeypatch, "raising", {hook: lambda: 1 // 0}, **FREE),
        offering(monkeypatch, "good", ["mylib.op"], **FREE),
        plugin(monkeypatch, "silent", {hook: lambda: None}, **FREE),
    ]
    extensions = extensions_of(points)
    for _ in range(2):
        assert plugins_of(extensions, "mylib.op") == ["good"]
        assert extensions.rewrites("cpu") == ()
    first, second = sorted(warnings_seen())
    assert "'faulty'" in first and words in first and "'raising'" in second
    assert words in extensions.plugins.state("faulty").reason
    with pytest.raises((TypeError, ValueError)):
        strict = extensions_of(points[:1], strict=True)
        strict.lowerings("cpu"), strict.rewrites("cpu")


def test_a_plugin_without_a_code_generator_is_no_backend(monkeypatch, warnings_seen):
    manager = PluginManager(Settings(), [plugin(monkeypatch, "rows", **{**FREE, "device_types": ("cpu",)})])
    assert manager.order("cpu") == () and manager.backends("cpu") == ()
    assert manager.state("rows").state is State.AVAILABLE
    with pytest.raises(BackendUnavailableError, match="brings no code generator"):
        manager.backend("rows")
    assert warnings_seen() == []


def test_facts_for_keys_name_their_plugin(monkeypatch, warnings_seen):
    points = [
        plugin(monkeypatch, "b", {"polyfuse_cache_key": lambda settings: [settings.numerics, "x"]}, **FREE),
        plugin(monkeypatch, "a", {"polyfuse_cache_key": lambda: ["1"]}),
        plugin(monkeypatch, "c", {"polyfuse_cache_key": lambda: None}, **FREE),
    ]
    assert extensions_of(points).key_facts() == ("a: 1", "b: fast", "b: x")
    assert warnings_seen() == []


@pytest.mark.parametrize("answer", ["text", [1], 7])
def test_a_plugin_that_cannot_name_its_facts(monkeypatch, warnings_seen, answer):
    points = [plugin(monkeypatch, "odd", {"polyfuse_cache_key": lambda: answer}, **FREE)]
    assert extensions_of(points).key_facts() is None
    (warning,) = warnings_seen()
    assert "'odd'" in warning and "nothing is cached between runs" in warning


def test_the_first_plugin_that_knows_a_device_answers_for_it(monkeypatch):
    class Special(Device):
        """One that a plugin brings."""

    def broken(device_type):
        raise LookupError("no driver")

    points = [
        plugin(monkeypatch, "aaa", {"polyfuse_device": broken}, **FREE),
        plugin(monkeypatch, "bbb", {"polyfuse_device": lambda: "nonsense"}, **FREE),
        plugin(monkeypatch, "ccc", {"polyfuse_device": lambda device_type: None}, **FREE),
        plugin(monkeypatch, "ddd", {"polyfuse_device": lambda device_type: Special(device_type)}, **FREE),
    ]
    extensions = extensions_of(points)
    found = extensions.device("special")
    assert isinstance(found, Special) and found.type == "special"
    states = {state.name: state.reason for state in extensions.plugins.states()}
    assert "no driver" in states["aaa"] and "no Device" in states["bbb"]
    with pytest.raises(LookupError):
        extensions_of(points, strict=True).device("special")
