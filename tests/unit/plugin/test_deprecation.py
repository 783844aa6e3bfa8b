"""What leaves the plugin interface works for two minors more, and warns with the name of what replaces it."""

from __future__ import annotations

import pytest

import polyfuse.plugin as door
from fake_plugins import plugin
from polyfuse.base.settings import Settings
from polyfuse.plugin import Claim, PluginManager, Yes, deprecation
from polyfuse.plugin.deprecation import DEPRECATED, Deprecation
from toy_backend import ToyBackend

OLD = Deprecation("`Codegen`", (2, 1), "polyfuse.plugin.codegen:Codegen")
METHOD = Deprecation("`Backend.configs`", (2, 1))
HOOK = Deprecation("the hook `polyfuse_timer`", (2, 1))


@pytest.fixture(autouse=True)
def table(monkeypatch):
    rows = {"Generator": OLD, "Backend.neighbours": METHOD, "polyfuse_doctor": HOOK}
    monkeypatch.setattr(deprecation, "DEPRECATED", {**DEPRECATED, **rows})


def test_an_old_name_is_the_new_one_and_warns_once(warnings_seen):
    for _ in range(2):
        assert door.Generator is door.Codegen  # type: ignore[attr-defined]
        exec("from polyfuse.plugin import Generator", {"__name__": "theirs.rules"})
    seen = warnings_seen()
    assert len(seen) == 2 and f"module {__name__}" in seen[0] and "module theirs.rules" in seen[1]
    says = "`Generator` is deprecated since plugin interface 2.1 and works until 2.3 at least; use `Codegen`"
    assert all(says in text for text in seen)
    with pytest.raises(AttributeError):
        door.Unknown  # type: ignore[attr-defined]


class Overriding(ToyBackend):
    def neighbours(self, kernel: object, config: object) -> tuple[()]:
        return ()

    def can_fuse(self, first: object, second: object) -> Claim:
        return Yes()


class Plain(ToyBackend):
    pass


def manager(monkeypatch, kind, **hooks):
    monkeypatch.setattr("toy_backend.Chosen", kind, raising=False)
    return PluginManager(Settings(), [plugin(monkeypatch, load="toy_backend:Chosen", hooks=hooks)])


def test_a_backend_that_defines_a_deprecated_method_is_named_once(monkeypatch, warnings_seen):
    for _ in range(2):
        assert manager(monkeypatch, Overriding).backend("toy").claims(None) == Yes()  # type: ignore[arg-type]
    seen = warnings_seen()
    assert len(seen) == 2
    removed, replaced = seen
    assert "plugin 'toy': `Backend.can_fuse` left the plugin interface with 2.0 and is not used" in removed
    assert removed.endswith("use the hook `polyfuse_fusion_rules`")
    assert "`Backend.neighbours` is deprecated" in replaced and "use `Backend.configs`" in replaced


def test_a_plugin_that_implements_a_deprecated_hook_is_named(monkeypatch, warnings_seen):
    def polyfuse_doctor(settings):
        return []

    manager(monkeypatch, Plain, polyfuse_doctor=polyfuse_doctor)
    (seen,) = warnings_seen()
    assert "plugin 'toy': `polyfuse_doctor` is deprecated" in seen and seen.endswith("`polyfuse_timer`")


def test_what_is_not_deprecated_warns_of_nothing(monkeypatch, warnings_seen):
    manager(monkeypatch, Plain).backend("toy")
    assert not warnings_seen()


def test_what_is_deprecated_says_so_in_the_terms_of_the_interface():
    for name, row in DEPRECATED.items():
        assert row.instead and row.since <= door.API_VERSION, name
        assert row.removed or row.import_path or "." in name or name.startswith("polyfuse_"), name
