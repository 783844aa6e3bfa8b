from __future__ import annotations

import dataclasses

import pytest

from polyfuse.base import settings
from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.settings import MODES, Settings, option_infos


def test_defaults_without_environment(clean_environment):
    assert Settings.resolve() == Settings()


def test_later_sources_win(clean_environment):
    clean_environment.setattr(settings, "MODES", {"brisk": {"fusion": False, "inplace": False}})
    clean_environment.setenv("POLYFUSE_FUSION", "1")
    clean_environment.setenv("POLYFUSE_FUEL", "3")
    found = Settings.resolve("brisk", {"inplace": True})
    assert not found.fusion and found.inplace and found.fuel == 3


@pytest.mark.parametrize("mode", [None, *MODES])
def test_every_mode_resolves(clean_environment, mode):
    Settings.resolve(mode)


def test_environment_texts(clean_environment):
    clean_environment.setenv("POLYFUSE_BACKENDS", "halide, cpp")
    clean_environment.setenv("POLYFUSE_STRICT", "yes")
    clean_environment.setenv("POLYFUSE_VERIFY", "2")
    clean_environment.setenv("POLYFUSE_FUEL", "none")
    settings = Settings.resolve()
    assert settings.backends == ("halide", "cpp")
    assert settings.strict and settings.verify == 2 and settings.fuel is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fule": 3}, ["'fule'", "fuel"]),
        ({"max_fusion_siez": 3}, ["max_fusion_size"]),
        ({"zzzz": 3}, ["settings.md"]),
        ({"plugin_options": ()}, ["unknown"]),
        ({"numerics": "slow"}, ["'fast' or 'eager'"]),
        ({"max_fusion_size": 0}, ["1 or more"]),
        ({"max_fusion_size": "many"}, ["an integer"]),
        ({"strict": "maybe"}, ["True or False"]),
        ({"backends": 3}, ["list of names"]),
        ({"dump": 3}, ["text"]),
    ],
)
def test_refusals_name_the_fix(clean_environment, options, words):
    with pytest.raises(InvalidOptionError) as caught:
        Settings.resolve(options=options)
    for word in words:
        assert word in str(caught.value)


def test_unknown_mode(clean_environment):
    with pytest.raises(InvalidOptionError, match="max-autotune"):
        Settings.resolve("fastest")


def test_bad_environment_value_names_the_variable(clean_environment):
    clean_environment.setenv("POLYFUSE_STRICT", "maybe")
    with pytest.raises(InvalidOptionError, match="POLYFUSE_STRICT"):
        Settings.resolve()


def test_unknown_environment_variable_is_warned_about_once(clean_environment, warnings_seen):
    clean_environment.setenv("POLYFUSE_FULE", "3")
    Settings.resolve()
    Settings.resolve()
    (warning,) = warnings_seen()
    assert "POLYFUSE_FUEL" in warning


def test_plugin_options(clean_environment):
    clean_environment.setenv("POLYFUSE_TOY__LEVEL", "2")
    settings = Settings.resolve(options={"toy.flags": ["-a"]})
    assert settings.plugin_option("toy", "level") == "2"
    assert settings.plugin_option("toy", "flags") == ["-a"]
    assert settings.plugin_option("toy", "other", 5) == 5


def test_with_options_checks_too(clean_environment):
    assert Settings().with_options(verify=2).verify == 2
    with pytest.raises(InvalidOptionError):
        Settings().with_options(verify=9)
    with pytest.raises(InvalidOptionError):
        Settings().with_options(verfy=1)


def test_fingerprint_follows_what_changes_code(clean_environment):
    plain = Settings()
    assert plain.fingerprint() == Settings().fingerprint()
    assert plain.with_options(numerics="eager").fingerprint() != plain.fingerprint()
    assert plain.with_options(dump="/tmp/x", log="info").fingerprint() == plain.fingerprint()
    assert Settings.resolve(options={"toy.a": 1}).fingerprint() != plain.fingerprint()


def test_settings_are_frozen_and_hashable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().strict = True  # type: ignore[misc]
    assert hash(Settings()) == hash(Settings())


def test_build_worker_count():
    assert Settings(build_workers=3).build_worker_count() == 3
    assert Settings().build_worker_count() >= 1


def test_every_option_says_what_it_does():
    for info in option_infos().values():
        assert info.doc.endswith("."), info.name
        assert info.variable == f"POLYFUSE_{info.name.upper()}"
