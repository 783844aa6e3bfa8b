"""How kernels whose frame is written by hand are called as parts of programs."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from polyfuse_cuda import template
from polyfuse_cuda.template import TemplateKernel


@dataclass(frozen=True)
class Located:
    """A tensor, as far as launches ask."""

    address: int
    index: int = 0

    @property
    def device(self) -> str:
        return f"cuda:{self.index}"

    def data_ptr(self) -> int:
        return self.address

    def get_device(self) -> int:
        return self.index


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Devices that are entered, kernels that are loaded (aligned or not), and launches with arguments."""
    found: list[Any] = []

    def entered(device: str) -> Any:
        found.append(device)
        return nullcontext()

    monkeypatch.setattr(template, "_current_device", lambda: 0)
    monkeypatch.setattr(template, "_device", entered)
    return found


def kernel(calls: list[Any]) -> TemplateKernel:
    def load(aligned: bool) -> Any:
        calls.append(aligned)
        return lambda *arguments: calls.append(arguments)

    return TemplateKernel("named", load)


def test_aligned_tensors_are_launched_by_their_addresses(calls: list[Any]) -> None:
    launched = kernel(calls)
    launched(Located(0x100), Located(0x210), 7)
    launched(Located(0x100), Located(0x210), 8)
    assert calls == [True, (0x100, 0x210, 7), (0x100, 0x210, 8)]


def test_odd_addresses_and_the_host_have_tensors(calls: list[Any]) -> None:
    launched = kernel(calls)
    odd, host = (Located(0x100), Located(0x208), 16), (Located(0x100, -1), 7)
    launched(*odd)
    launched(*host)
    assert calls == [False, odd, True, host]


def test_another_device_is_entered_before_its_kernel_is_loaded(calls: list[Any]) -> None:
    kernel(calls)(Located(0x100, 1), 3)
    assert calls == ["cuda:1", True, (0x100, 3)]
