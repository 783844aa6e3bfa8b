from __future__ import annotations

import sys
from types import ModuleType

import pytest

from fake_plugins import entry_point, plugin
from polyfuse.base.errors import BackendUnavailableError, DuplicateBackendError, InvalidOptionError
from polyfuse.base.settings import Settings
from polyfuse.plugin import API_VERSION, Finding, PluginManager, Requires, State
from toy_backend import ToyBackend


def states(manager: PluginManager) -> dict[str, State]:
    return {state.name: state.state for state in manager.states()}


def test_found_and_loaded_when_needed(monkeypatch):
    manager = PluginManager(Settings(), [plugin(monkeypatch)])
    (state,) = manager.states()
    assert (state.name, state.distribution, state.version) == ("toy", "polyfuse-toy", "2.0")
    assert state.state is State.AVAILABLE
    (backend,) = manager.backends("cpu")
    assert isinstance(backend, ToyBackend) and backend.name == "toy"
    assert manager.state("toy").state is State.LOADED
    assert manager.backends("cpu") == (backend,) and manager.backend("toy") is backend
    assert manager.backends("tpu") == ()


def test_order_by_priority_then_name(monkeypatch):
    points = [
        plugin(monkeypatch, "b", priority={"cpu": 5}),
        plugin(monkeypatch, "a", priority={"cpu": 5}),
        plugin(monkeypatch, "best", priority={"cpu": 9}),
        plugin(monkeypatch, "quiet", priority={}),
    ]
    assert PluginManager(Settings(), points).order("cpu") == ("best", "a", "b")
    named = Settings(backends=("quiet", "a", "quiet"))
    assert PluginManager(named, points).order("cpu") == ("quiet", "a")
    disabled = Settings(backends=("quiet", "a"), disable=("a",))
    assert PluginManager(disabled, points).order("cpu") == ("quiet",)


def test_disabled(monkeypatch):
    manager = PluginManager(Settings(disable=("toy", "unknown")), [plugin(monkeypatch)])
    assert states(manager) == {"toy": State.DISABLED}
    with pytest.raises(BackendUnavailableError, match="disabled"):
        manager.backend("toy")


@pytest.mark.parametrize(
    ("api", "fix"),
    [
        ((API_VERSION[0] + 1, 0), "upgrade polyfuse"),
        ((0, 9), "newer version of 'toy'"),
        ((API_VERSION[0], API_VERSION[1] + 1), "upgrade polyfuse"),
    ],
)
def test_another_interface_is_refused_before_loading(monkeypatch, warnings_seen, api, fix):
    manager = PluginManager(Settings(), [plugin(monkeypatch, api=api, load="nowhere:nothing")])
    state = manager.state("toy")
    assert state.state is State.REFUSED and fix in state.reason and "\n" not in state.reason
    assert manager.backends("cpu") == ()
    assert len(warnings_seen()) == 1


def test_duplicates_name_both_distributions(monkeypatch):
    first = plugin(monkeypatch)
    second = entry_point("toy", "other_module", "polyfuse-impostor")
    with pytest.raises(DuplicateBackendError) as caught:
        PluginManager(Settings(), [first, second])
    assert "polyfuse-toy" in str(caught.value) and "polyfuse-impostor" in str(caught.value)
    # The same entry point seen twice is one plugin.
    assert len(PluginManager(Settings(), [first, first]).states()) == 1


def test_raising_on_load_costs_only_itself(monkeypatch, warnings_seen):
    def broken(settings):
        raise RuntimeError("no device")

    module = ModuleType("broken_backend")
    module.make = broken  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "broken_backend", module)
    points = [
        plugin(monkeypatch, "broken", load="broken_backend:make", priority={"cpu": 99}),
        plugin(monkeypatch),
    ]
    manager = PluginManager(Settings(), points)
    assert [backend.name for backend in manager.backends("cpu")] == ["toy"]
    state = manager.state("broken")
    assert state.state is State.FAILED and "RuntimeError: no device" in state.reason
    manager.backends("cpu")
    (warning,) = warnings_seen()
    assert "'broken'" in warning and "polyfuse-broken 2.0" in warning
    with pytest.raises(RuntimeError):
        PluginManager(Settings(strict=True), points).backends("cpu")


def test_declining_is_not_failing(monkeypatch, warnings_seen):
    def decline(settings):
        raise BackendUnavailableError("there is no such device here", "add one")

    module = ModuleType("declining_backend")
    module.make = decline  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "declining_backend", module)
    points = [
        plugin(monkeypatch, load="declining_backend:make"),
        plugin(monkeypatch, "better", priority={"cpu": 99}),
    ]
    manager = PluginManager(Settings(), points)
    assert [backend.name for backend in manager.backends("cpu")] == ["better"]
    assert manager.state("toy").state is State.REFUSED
    assert warnings_seen() == []  # it would not have been asked first anyway
    assert PluginManager(Settings(backends=("toy",)), points).backends("cpu") == ()
    assert len(warnings_seen()) == 1
    with pytest.raises(BackendUnavailableError, match="no such device here; add one"):
        PluginManager(Settings(backends=("toy",), strict=True), points).backends("cpu")


@pytest.mark.parametrize(
    ("module", "word"),
    [("no_such_module_anywhere", "ModuleNotFoundError"), ("json", "no hook implementation")],
)
def test_bad_manifest_modules(module, word):
    manager = PluginManager(Settings(), [entry_point("toy", module)])
    state = manager.state("toy")
    assert state.state is State.FAILED and word in state.reason and state.distribution == "polyfuse-toy"


def test_manifest_of_another_name(monkeypatch):
    point = plugin(monkeypatch, "one")
    manager = PluginManager(Settings(), [entry_point("two", point.value)])
    assert "'one'" in manager.state("two").reason


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("api", "1.0"),
        ("api", (1,)),
        ("api", None),
        ("version", 2),
        ("device_types", "cpu"),
        ("device_types", None),
        ("priority", {"cpu": "high"}),
        ("priority", 5),
        ("priority", {0: 1}),
        ("requires", None),
        ("requires", Requires(packages=None)),
        ("requires", Requires(programs=(3,))),
        ("options", ["level"]),
        ("load", ToyBackend),
        ("loader", None),
        ("offers", "kernels"),
        ("last_resort", "no"),
        ("specialist", "no"),
    ],
)
def test_a_malformed_manifest_costs_its_plugin_alone(monkeypatch, warnings_seen, field, value):
    points = [plugin(monkeypatch, "odd", **{field: value}), plugin(monkeypatch, "sound")]
    manager = PluginManager(Settings(), points)
    assert manager.state("odd").state is State.FAILED and field in manager.state("odd").reason
    assert manager.order("cpu") == ("sound",)
    (backend,) = manager.backends("cpu")
    assert isinstance(backend, ToyBackend)
    assert len([said for said in warnings_seen() if "odd" in said]) == 1


@pytest.mark.parametrize("where", ["importing", "its manifest", "a hook", "loading"])
def test_a_plugin_that_ends_the_program_costs_itself_alone(monkeypatch, tmp_path, warnings_seen, where):
    def ends(*_: object, **__: object) -> None:
        raise SystemExit(3)

    hooks = {"polyfuse_lowerings": lambda: ends()} if where == "a hook" else {}
    home = ModuleType("a_backend_that_ends")
    home.Ends = ends  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, home.__name__, home)
    changes = {"load": f"{home.__name__}:Ends"} if where == "loading" else {}
    odd = plugin(monkeypatch, "odd", hooks=hooks, priority={"cpu": 99}, **changes)
    if where == "importing":
        (tmp_path / "module_that_ends.py").write_text("raise SystemExit(3)\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        odd = entry_point("odd", "module_that_ends")
    if where == "its manifest":
        monkeypatch.setattr(sys.modules[odd.value], "polyfuse_manifest", ends)
    manager = PluginManager(Settings(), [odd, plugin(monkeypatch, "sound")])
    manager.ask("polyfuse_lowerings", device_type="cpu")
    assert len(manager.backends("cpu")) == (2 if where == "a hook" else 1)
    assert manager.order("cpu")[-1] == "sound"
    assert len([said for said in warnings_seen() if "odd" in said]) == 1


@pytest.mark.parametrize(
    ("requires", "word"),
    [
        (Requires(packages=("polyfuse-no-such-package>=1",)), "pip install"),
        (Requires(packages=("pluggy>=999",)), "pluggy is"),
        (Requires(packages=("not a requirement",)), "malformed"),
        (Requires(programs=("$POLYFUSE_NO_SUCH|no-such-program|other",)), "no-such-program"),
    ],
)
def test_missing_requirements(monkeypatch, requires, word):
    manager = PluginManager(Settings(), [plugin(monkeypatch, requires=requires)])
    state = manager.state("toy")
    assert state.state is State.REFUSED and word in state.reason


def test_met_requirements(monkeypatch):
    monkeypatch.setenv("TOYCC", f"{sys.executable} -x")
    requires = Requires(
        packages=("pluggy>=1", "no-such-thing; python_version < '3'"),
        programs=("no-such-program|sh", "$TOYCC"),
    )
    assert PluginManager(Settings(), [plugin(monkeypatch, requires=requires)]).order("cpu") == ("toy",)


def test_unknown_names_suggest(monkeypatch):
    with pytest.raises(BackendUnavailableError, match="did you mean toy"):
        PluginManager(Settings(backends=("tyo",)), [plugin(monkeypatch)])
    with pytest.raises(BackendUnavailableError, match="installed are toy"):
        PluginManager(Settings(), [plugin(monkeypatch)]).backend("zzzzzz")


def test_plugin_options_are_checked(monkeypatch):
    points = [plugin(monkeypatch)]
    PluginManager(Settings.resolve(options={"toy.level": 1}), points)
    with pytest.raises(InvalidOptionError, match=r"toy\.level"):
        PluginManager(Settings.resolve(options={"toy.levle": 1}), points)
    with pytest.raises(InvalidOptionError, match="not installed"):
        PluginManager(Settings.resolve(options={"toi.level": 1}), points)


def test_trouble_with_one_kernel_keeps_the_backend(monkeypatch, warnings_seen):
    manager = PluginManager(Settings(), [plugin(monkeypatch)])
    (backend,) = manager.backends("cpu")
    for _ in range(2):
        manager.note_trouble("toy", KeyError("op"), "emitting k1")
    assert manager.backends("cpu") == (backend,)
    assert manager.state("toy").state is State.LOADED and "emitting k1" in manager.state("toy").reason
    assert len(warnings_seen()) == 1


def test_hooks_answer_in_isolation(monkeypatch, warnings_seen):
    def good(settings):
        return [Finding("cc", True, settings.numerics)]

    def bad():
        raise ValueError("broken hook")

    points = [
        plugin(monkeypatch, "good", hooks={"polyfuse_doctor": good}),
        plugin(monkeypatch, "bad", hooks={"polyfuse_doctor": bad}),
        plugin(monkeypatch, "none"),
    ]
    manager = PluginManager(Settings(), points)
    for _ in range(2):
        answers = manager.ask("polyfuse_doctor", settings=Settings())
        (answer,) = answers
        assert answer.plugin == "good" and answer.value == (Finding("cc", True, "fast"),)
        assert [plugin for plugin, _ in answers.faults] == ["bad"]
    assert len(warnings_seen()) == 1 and "polyfuse_doctor" in manager.state("bad").reason
    with pytest.raises(ValueError, match="broken hook"):
        PluginManager(Settings(strict=True), points).ask("polyfuse_doctor", settings=Settings())


@pytest.mark.parametrize("name", ["polyfuse_doctr", "polyfuse_doctor"])
def test_misspelt_hooks_and_arguments_are_failures(monkeypatch, name):
    def hook(settigns):
        return []

    manager = PluginManager(Settings(), [plugin(monkeypatch, hooks={name: hook})])
    assert manager.state("toy").state is State.FAILED
    known = name == "polyfuse_doctor"
    assert known or "did you mean polyfuse_doctor?" in manager.state("toy").reason
    assert manager.hooks.hook.polyfuse_doctor.get_hookimpls() == []
