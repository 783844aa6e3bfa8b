"""Devices: who answers for a type, what the defaults are, and the kit's checks of what a device promises."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from polyfuse.base.errors import BackendUnavailableError
from polyfuse.plugin import Device, DeviceProperties, TargetInfo
from polyfuse.runtime.devices import registry
from polyfuse.runtime.devices.registry import class_name, device_of, import_device, use_device
from polyfuse.testing.device_checks import check_device
from polyfuse.torch_compat.devices.host_switches import matmul_precision
from polyfuse.torch_compat.groups import Group
from polyfuse_cuda.device import CudaDevice


class Special(Device):
    """One that a plugin brings."""


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_known", dict(registry._known))
    monkeypatch.setattr(registry, "_finder", [])


def test_the_host_is_known_and_anything_else_is_torchs() -> None:
    assert device_of("cpu").is_host and device_of("cpu:0") is device_of("cpu")
    assert type(device_of("xpu:1")) is Device and device_of("xpu:1").type == "xpu"


def test_a_finder_is_asked_once_for_what_it_knows() -> None:
    asked: list[str] = []

    def finder(device_type: str) -> Device | None:
        asked.append(device_type)
        return Special(device_type) if device_type == "special" else None

    registry.find_devices_with(finder)
    assert device_of("special:1") is device_of("special")
    assert type(device_of("other")) is Device and type(device_of("other")) is Device
    assert asked == ["special", "other", "other"], "another plugin may know the other one later"


def test_a_device_that_was_chosen_replaces_the_one_before() -> None:
    mine = Special("cpu")
    use_device("cpu", mine)
    assert device_of("cpu") is mine
    use_device("cpu", None)
    assert device_of("cpu").is_host


def test_another_process_finds_the_class_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("a_plugin_of_tests")
    module.Special = Special  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert class_name(Special("special")).endswith(":Special")
    made = import_device("special", "a_plugin_of_tests:Special", lambda device: device)
    assert isinstance(made, Special) and import_device("special", "nowhere:Nothing", id) is made
    with pytest.raises(BackendUnavailableError, match="nowhere"):
        import_device("strange", "nowhere:Nothing", id)


class Counting(ModuleType):
    """What torch has for a type of device."""

    def __init__(self) -> None:
        super().__init__("counting")
        self.log: list[Any] = []

    def synchronize(self, index: int | None) -> None:
        self.log.append(index)

    def memory_allocated(self, index: int | None) -> int:
        return 3

    max_memory_allocated = memory_reserved = memory_allocated


def test_the_defaults_ask_torchs_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Counting()
    monkeypatch.setattr(torch, "get_device_module", lambda kind: {"counting": module}[kind])
    device = Device("counting")
    device.synchronize(1)
    memory = device.memory()
    assert module.log == [1] and memory is not None and memory.peak == 3
    assert not device.is_recording() and device.recorder() is None
    assert not device.rounds("matmuls") and not device.limits().missing and not device.switches()
    assert device.facts() == "counting counting"


def test_collectives_cost_what_they_move() -> None:
    device = Device("any")
    assert device.collective_seconds("all_gather", 10**9) == pytest.approx(1.00002)
    assert device.collective_seconds("all_reduce", 10**9, 4e9) == pytest.approx(0.50002)


def test_collectives_of_few_ranks_or_of_one_host_cost_less() -> None:
    class Linked(Device):
        network, link = 1e9, 1e10

    device, second = Linked("any"), 10**9
    assert device.collective_seconds("all_reduce", second, ranks=4) == pytest.approx(1.50002)
    assert device.collective_seconds("all_gather", second, ranks=4, on_host=True) == pytest.approx(0.07502)
    assert device.collective_seconds("broadcast", second, ranks=4) == pytest.approx(1.00002)
    assert device.collective_seconds("all_reduce", second, 2e9, ranks=2, on_host=True) == pytest.approx(
        0.50002
    )
    assert device.collective_seconds("all_reduce", second, ranks=1) < 1e-4


@pytest.mark.parametrize(
    ("ranks", "per_host", "wanted"),
    [
        ((0, 1, 2, 3), 4, True),
        ((4, 5, 6, 7), 4, True),
        ((0, 1, 2, 3), 2, False),
        ((0, 2, 4, 6), 8, True),
        ((0, 4), 4, False),
        ((2, 3), 8, True),
        ((0, 1, 2), 8, False),  # another group like it lies on two hosts
        ((0, 1, 3), 4, False),
        ((0, 1), 0, False),
    ],
)
def test_groups_of_one_host(ranks: tuple[int, ...], per_host: int, wanted: bool) -> None:
    assert Group("some", ranks, None, None).is_on_one_host(per_host) is wanted


def test_a_device_of_many_units_is_wide() -> None:
    narrow = TargetInfo.of(DeviceProperties("narrow", bandwidth=5.0, operations=7.0))
    assert narrow.recomputed_points and not TargetInfo().recomputed_points
    assert replace(narrow, recomputed_points=0) == TargetInfo(bandwidth=5.0, operations=7.0)
    wide = TargetInfo.of(DeviceProperties("wide", units=10))
    assert wide.blocks == 20 and wide.few_rows == 10 and not wide.double_sums


class Broken(Device):
    """The host's memory, with promises that are broken."""

    def count(self) -> int:
        return 1

    def guard(self, index: int) -> Any:
        return torch.no_grad()

    def current(self) -> Any:
        return lambda: 7

    def properties(self, index: int | None = None) -> DeviceProperties:
        return DeviceProperties("", alignment=1 << 40)


def test_the_kit_finds_broken_promises() -> None:
    use_device("cpu", Broken("cpu"))
    found = dict(check_device("cpu"))
    assert found["a guard makes its device the current one"].endswith("the current one is 7")
    assert "no multiple" in found["the allocator makes what is asked for, and counts it"]
    assert found["facts stay the same"] == "the properties have no name"
    assert found["events measure time"].startswith("it raised")


@pytest.fixture
def frozen() -> Iterator[None]:
    """Torch's switches as its own test helpers leave them."""
    names = vars(torch.backends)["m"]
    before = names.__allow_nonbracketed_mutation_flag
    torch.backends.disable_global_flags()
    yield
    names.__allow_nonbracketed_mutation_flag = before


def test_switches_that_torch_froze_are_set_all_the_same(frozen: None) -> None:
    known = device_of("cpu").switches()
    try:
        device_of("cpu").set_switches({**known, "oneDNN": False})
        assert known["oneDNN"] and not device_of("cpu").switches()["oneDNN"]
    finally:
        device_of("cpu").set_switches(known)
    assert device_of("cpu").switches() == known


@pytest.fixture
def precisions() -> Iterator[None]:
    matmuls, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with torch.backends.__allow_nonbracketed_mutation():  # torch's test helpers freeze what they imported
        yield
        torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "ieee"
        torch.set_float32_matmul_precision(matmuls)
        torch.backends.cudnn.allow_tf32 = convolutions


@pytest.mark.parametrize("chosen", ["highest", "high", "medium"])
def test_switches_of_the_host_are_set_as_they_were_read(chosen: str, precisions: None) -> None:
    torch.set_float32_matmul_precision(chosen)
    torch.backends.mkldnn.conv.fp32_precision = "ieee"
    known = device_of("cpu").switches()
    torch.set_float32_matmul_precision("highest" if chosen != "highest" else "medium")
    torch.backends.mkldnn.conv.fp32_precision = "bf16"
    device_of("cpu").set_switches(known)
    assert torch.get_float32_matmul_precision() == chosen and device_of("cpu").switches() == known
    torch.backends.mkldnn.conv.fp32_precision = "none"


def test_the_newer_interface_of_precisions_is_understood(precisions: None) -> None:
    """After it torch refuses to answer its older one."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy"):
        torch.get_float32_matmul_precision()
    first = matmul_precision()
    assert CudaDevice("cuda").rounds("matmuls") and not precision_of(torch.backends.mkldnn.matmul)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    assert matmul_precision() != first and precision_of(torch.backends.mkldnn.matmul)


def precision_of(operator: Any) -> bool:
    return operator.fp32_precision not in ("none", "ieee")


@pytest.mark.parametrize(("chosen", "rounded"), [("highest", False), ("high", True), ("medium", True)])
def test_what_cublas_may_round(chosen: str, rounded: bool, precisions: None) -> None:
    torch.set_float32_matmul_precision(chosen)
    assert CudaDevice("cuda").rounds("matmuls") == rounded


@pytest.mark.parametrize("allowed", [True, False])
def test_what_cudnn_may_round(allowed: bool, precisions: None) -> None:
    torch.backends.cudnn.allow_tf32 = allowed
    assert CudaDevice("cuda").rounds("convolutions") == allowed


def test_measurements_hold_whichever_gpu_is_current() -> None:
    assert CudaDevice("cuda").timeless_switches == {"current"}
    assert "current" in CudaDevice("cuda").switches()
