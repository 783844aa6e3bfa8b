"""Plugins' fusion rules: whose kernels they are about, what they cost, and what a faulty one costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fake_plugins import install, plugin
from polyfuse.base.settings import Settings
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import (
    Extensions,
    FusionPair,
    FusionRule,
    FusionRules,
    No,
    PluginManager,
    TargetInfo,
    Yes,
)

PAIR = FusionPair((), (), "cpu", "toy", TargetInfo())


def exits() -> Any:
    raise SystemExit(3)


def fails() -> Any:
    raise ValueError("it is broken")


@pytest.mark.parametrize("fault", [exits, fails, lambda: None, lambda: 3.5, lambda: object()])
@pytest.mark.parametrize("part", ["allows", "worth"])
def test_a_faulty_rule_is_named_once_and_left_out(part, fault):
    calls: list[int] = []

    def broken(pair: FusionPair) -> Any:
        calls.append(1)
        return fault()

    reported: list[tuple[str, str]] = []
    rules = FusionRules(
        [
            ("a", FusionRule("broken", **{part: broken})),
            ("b", FusionRule("sound", allows=lambda pair: No("no"), worth=lambda pair: 7)),
        ],
        lambda name, error, doing: reported.append((name, doing)),
    )
    for _ in range(2):
        assert rules.refusal(PAIR) == "no (rule b.sound)" and rules.worth(PAIR) == 7
    assert reported == [("a", "asking its fusion rule `broken`")] and len(calls) == 1


def test_strict_raises_but_never_ends_the_process():
    rules = FusionRules([("a", FusionRule("broken", allows=lambda pair: exits()))], strict=True)
    with pytest.raises(Exception, match="end the process"):
        rules.refusal(PAIR)


def rule(name: str, **more: Any) -> Callable[[], list[FusionRule]]:
    return lambda: [FusionRule(name, allows=lambda pair: No(name), **more)]


def test_whose_kernels_a_rule_is_about(monkeypatch):
    """Its own plugin's; every one's, of a plugin without a backend; or those that it names."""
    free: dict[str, Any] = {"load": "", "device_types": (), "priority": {}}
    hook = "polyfuse_fusion_rules"
    points = [
        plugin(monkeypatch, "one", {hook: rule("own")}),
        plugin(monkeypatch, "two", {hook: rule("others", backends=("one",))}),
        plugin(monkeypatch, "free", {hook: rule("all")}, **free),
    ]
    extensions = Extensions(PluginManager(Settings(), points))
    assert "rule one.own" in extensions.fusion_rules("one", "cpu").refusal(PAIR)
    assert "rule free.all" in extensions.fusion_rules("two", "cpu").refusal(PAIR)
    off = Extensions(PluginManager(Settings(disable_fusion_rules=("own", "free.all")), points))
    assert "rule two.others" in off.fusion_rules("one", "cpu").refusal(PAIR)
    assert off.fusion_rules("two", "cpu").refusal(PAIR) == ""
    assert not off.fusion_rules("two", "cpu").refuse


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (["x"], "no FusionRule"),
        ([FusionRule("")], "no name"),
        ([FusionRule("x", allows=3)], "in place of a function"),  # type: ignore[arg-type]
        ([FusionRule("x", backends="cpp")], "names no backends"),  # type: ignore[arg-type]
    ],
)
def test_nonsense_is_no_rule(monkeypatch, warnings_seen, answer, words):
    point = plugin(monkeypatch, "a", {"polyfuse_fusion_rules": lambda: answer})
    extensions = Extensions(PluginManager(Settings(), [point]))
    assert not extensions.fusion_rules("a", "cpu").refuse
    (text,) = warnings_seen()
    assert words in text and "'a'" in text


def test_the_hook_is_called_once_a_session(monkeypatch, tmp_path):
    """However many graphs and kernels there are: what a pair of nodes costs is the rule's own call."""
    hooks: list[str] = []
    pairs: list[FusionPair] = []

    def allows(pair: FusionPair) -> Yes:
        pairs.append(pair)
        return Yes()

    def rules(device_type: str) -> list[FusionRule]:
        hooks.append(device_type)
        return [FusionRule("look", allows=allows, backends=("interpreter",))]

    install(monkeypatch, plugin(monkeypatch, "look", {"polyfuse_fusion_rules": rules}, load="", priority={}))
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    forget_sessions()
    torch.compiler.reset()
    options = {"backends": ["interpreter"]}
    for size in (3, 4, 5):

        def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.sin().sum(0), x.cos()

        x = torch.randn(size, size)
        torch.testing.assert_close(
            torch.compile(f, backend="polyfuse", options=options, dynamic=False)(x), f(x)
        )
    forget_sessions()
    assert hooks == ["cpu"] and len(pairs) >= 3
