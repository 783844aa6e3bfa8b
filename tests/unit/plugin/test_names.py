"""Wherever a user names a backend, a wrong name is the same error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fake_plugins import install, plugin
from polyfuse import cli
from polyfuse.aot.description import BackendNote
from polyfuse.aot.loading import _loader
from polyfuse.base.errors import BackendUnavailableError, InvalidOptionError, PackageError
from polyfuse.base.settings import Settings
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import PluginManager
from polyfuse.testing.conformance import run as run_kit
from polyfuse.testing.lying.installed import made

KERNEL = str(Path(__file__).parents[2] / "corpus" / "000.ir")


def compiled(name: str) -> None:
    torch.compile(lambda x: x + 1, backend="polyfuse", options={"backends": [name]})(torch.ones(2))


# Of the options that say in which order backends are asked, and of what means one backend.
ORDERS: dict[str, Callable[[str], object]] = {
    "options of torch.compile": compiled,
    "settings": lambda name: PluginManager(Settings.resolve(None, {"backends": name})),
    "several": lambda name: PluginManager(Settings.resolve(None, {"backends": f"cpp, {name}"})),
}
ONE: dict[str, Callable[[str], object]] = {
    "the manager": lambda name: PluginManager(Settings.resolve()).backend(name),
    "the conformance kit": lambda name: run_kit(name, quick=True),
    "an option of a plugin": lambda name: made(Settings.resolve(None, {"lying.backend": name})),
}
COMMANDS = {
    "replay": ("replay", KERNEL, "--backend", "NAME"),
    "conformance": ("conformance", "NAME", "--quick"),
    "bench": ("bench", __file__, "--engines", "eager,NAME"),
    "doctor": ("doctor", "NAME"),
}
WRONG = {
    "ccp": "backend 'ccp' is not installed; did you mean cpp?",
    "CPP": "backend 'CPP' is not installed; did you mean cpp?",
    "rules": "plugin 'rules' brings no code generator, so it is no backend",
    "halide": "backend 'halide' is disabled: listed in the option `disable`",
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYFUSE_DISABLE", "halide")
    lying = plugin(monkeypatch, "lying", load="", device_types=(), priority={}, options={"backend": "It."})
    install(monkeypatch, plugin(monkeypatch, "rules", load="", device_types=(), priority={}), lying)
    forget_sessions()
    torch.compiler.reset()


@pytest.mark.parametrize("way", ORDERS)
def test_an_order_of_backends(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is disabled is passed over: what `disable` lists must not be used, even when named."""
    for name, text in WRONG.items():
        if name == "halide":
            assert "halide" not in PluginManager(Settings.resolve(None, {"backends": name})).order("cpu")
            continue
        with pytest.raises(BackendUnavailableError) as caught:
            ORDERS[way](name)
        assert str(caught.value).startswith(text)
    monkeypatch.setenv("POLYFUSE_BACKENDS", "ccp")
    with pytest.raises(BackendUnavailableError, match="'ccp' is not installed; did you mean cpp"):
        PluginManager(Settings.resolve())


@pytest.mark.parametrize("way", ONE)
def test_one_backend(way: str) -> None:
    for name, text in WRONG.items():
        with pytest.raises(BackendUnavailableError) as caught:
            ONE[way](name)
        assert str(caught.value).startswith(text)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in WRONG.items():
        if command == "doctor" and name in ("rules", "halide"):
            continue  # it looks at any plugin, whatever its state
        assert cli.main([word.replace("NAME", name) for word in COMMANDS[command]]) == 1
        assert capsys.readouterr().err.startswith(f"polyfuse: {text}")


def test_a_package() -> None:
    for name, text in WRONG.items():
        with pytest.raises(PackageError) as caught:
            _loader(name, BackendNote("", "polyfuse-any", "1.0", {}))
        assert text.partition(";")[0] in str(caught.value)


def test_options_of_a_plugin() -> None:
    with pytest.raises(InvalidOptionError, match=r"'ccp.isa' is for a plugin that is not installed; .*cpp"):
        PluginManager(Settings.resolve(None, {"ccp.isa": "sse"}))


def test_a_name_to_disable_that_nothing_has_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    PluginManager(Settings.resolve(None, {"disable": "haldie"}))
    (record,) = caplog.records
    assert "'haldie', which is not installed; did you mean halide?" in record.getMessage()
