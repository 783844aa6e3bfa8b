"""The option `channels_last`, through the whole compiler."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from polyfuse.base.settings import Settings
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.compiler.session import CompileSession, session_for
from polyfuse.frontend.graph import ChannelsLast
from polyfuse.ir.types import DType
from polyfuse.plugin import Device, TargetInfo

NARROW = frozenset({DType.f16, DType.bf16})
WEIGHT = torch.empty(8, 8, 3, 3)


@pytest.mark.quick(2)
@pytest.mark.parametrize("option", ["auto", "on", "off"])
def test_models_agree(option: str) -> None:
    torch._dynamo.reset()
    reset_reports()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.Conv2d(8, 5, 3, stride=2),
        nn.AvgPool2d(2),
    )
    x = torch.randn(2, 3, 13, 13)
    expected = model(x)
    expected.square().mean().backward()
    gradients = [p.grad for p in model.parameters()]
    model.zero_grad()
    # the first call has changed what the norm remembers
    run = torch.compile(model, backend="polyfuse", options={"channels_last": option, "strict": True})
    result = run(x)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)
    assert result.stride() == expected.stride()
    result.square().mean().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], gradients, rtol=1e-3, atol=1e-5)
    assert not any(report.fallbacks or report.eager for report in last_reports())


@pytest.mark.parametrize("rounded", [True, False])
def test_single_precision_wants_it_where_it_may_be_rounded(
    monkeypatch: pytest.MonkeyPatch, rounded: bool
) -> None:
    monkeypatch.setattr(CompileSession, "target_info", lambda self, device: TargetInfo(channels_last=NARROW))
    monkeypatch.setattr(Device, "rounds", lambda self, what: rounded and what == "convolutions")
    value = torch.empty(1, device="meta")
    assert session_for(Settings()).wants_channels_last(value, WEIGHT, False) == rounded
    assert not session_for(Settings()).wants_channels_last(value, WEIGHT, True)
    assert not session_for(Settings()).wants_channels_last(value.double(), WEIGHT, False)


def test_single_precision_wants_it_where_the_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    info = TargetInfo(channels_last=frozenset({DType.f32}))
    monkeypatch.setattr(CompileSession, "target_info", lambda self, device: info)
    value = torch.empty(1)
    assert session_for(Settings()).wants_channels_last(value, WEIGHT, False)
    assert not session_for(Settings()).wants_channels_last(value, WEIGHT, True)
    assert not session_for(Settings()).wants_channels_last(value.double(), WEIGHT, False)
    assert not session_for(Settings()).wants_channels_last(value.bfloat16(), WEIGHT, False)
    assert not session_for(Settings(numerics="eager")).wants_channels_last(value, WEIGHT, False)


@pytest.mark.parametrize(
    ("option", "info", "dtype", "training", "wanted"),
    [
        ("auto", True, torch.bfloat16, False, True),
        ("auto", True, torch.bfloat16, True, False),
        ("auto", True, torch.float32, False, False),
        ("auto", False, torch.bfloat16, False, False),
        ("on", False, torch.float32, True, True),
        ("off", True, torch.bfloat16, False, False),
    ],
)
def test_the_backend_is_asked_unless_the_option_says(
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    info: bool,
    dtype: torch.dtype,
    training: bool,
    wanted: bool,
) -> None:
    types = NARROW if info else frozenset()
    monkeypatch.setattr(CompileSession, "target_info", lambda self, device: TargetInfo(channels_last=types))
    session = session_for(Settings(channels_last=option))
    assert session.wants_channels_last(torch.empty(1, dtype=dtype), WEIGHT, training) == wanted


@pytest.mark.parametrize("training", [False, True])
def test_libraries_that_want_weights_so_get_them_in_training_too(
    monkeypatch: pytest.MonkeyPatch, training: bool
) -> None:
    info = TargetInfo(channels_last=NARROW, channels_last_weights=True)
    monkeypatch.setattr(CompileSession, "target_info", lambda self, device: info)
    value = torch.empty(1, dtype=torch.bfloat16)
    assert session_for(Settings()).wants_channels_last(value, WEIGHT, training) is ChannelsLast.ALL
    assert not session_for(Settings()).wants_channels_last(value.double(), WEIGHT, training)
    assert not session_for(Settings(channels_last="off")).wants_channels_last(value, WEIGHT, training)


@pytest.mark.parametrize(
    ("shape", "dtype", "training", "wanted"),
    [
        ((8, 1, 7, 7), torch.float32, True, False),
        ((8, 1, 7, 7), torch.float32, False, True),
        ((8, 1, 7, 7), torch.bfloat16, True, True),
        ((8, 1, 9, 9), torch.bfloat16, False, False),
        ((8, 1, 9, 9), torch.float32, False, False),
        ((8, 1, 5, 5), torch.float32, True, True),
        ((8, 2, 7, 7), torch.float32, True, True),
    ],
)
def test_large_depthwise_windows_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], dtype: torch.dtype, training: bool, wanted: bool
) -> None:
    info = TargetInfo(channels_last=NARROW, channels_last_weights=True)
    monkeypatch.setattr(CompileSession, "target_info", lambda self, device: info)
    monkeypatch.setattr(Device, "rounds", lambda self, what: what == "convolutions")
    value = torch.empty(1, dtype=dtype, device="meta")
    asked = session_for(Settings()).wants_channels_last(value, torch.empty(shape), training)
    assert asked == (ChannelsLast.ALL if wanted else ChannelsLast.NONE)
