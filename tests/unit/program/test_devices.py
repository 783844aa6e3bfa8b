"""Programs on devices other than the CPU: addresses, and which device is current."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from polyfuse.ir.graph import GraphInput
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.nodes import Buffer
from polyfuse.ir.types import DType
from polyfuse.program import plan, python_text
from polyfuse.runtime import checks, native
from polyfuse.runtime.module import load
from polyfuse.schedule import Launch, Schedule
from program_builder import Builder, add, add_one


def _aligned(schedule: Schedule, alignment: int = 16) -> Schedule:
    """The same, with kernels that take every address to be a round one."""

    def assume(kernel: Kernel) -> Kernel:
        return replace(kernel, args=tuple(replace(a, aligned=a.kind != "size") for a in kernel.args))

    steps = tuple(
        replace(s, kernel=assume(s.kernel), alignment=alignment) if isinstance(s, Launch) else s
        for s in schedule.steps
    )
    return replace(schedule, steps=steps)


def _module(b: Builder, seen: list[list[torch.Tensor]] | None = None, **options):
    from polyfuse.base.settings import Settings

    program = plan(_aligned(b.schedule()), Settings(**options))

    def watched(function):
        def run(*operands):
            assert all(o.data_ptr() % 16 == 0 for o in operands if isinstance(o, torch.Tensor))
            if seen is not None:
                seen.append(list(operands))
            function(*operands)

        return run

    kernels = {k.name: watched(b.functions[k.launches[0]]) for k in program.kernels}
    return load(python_text(program), kernels, b.objects)


def _off(tensor: torch.Tensor, by: int = 1) -> torch.Tensor:
    """The same values at an address that is off by some elements."""
    storage = torch.empty(tensor.numel() + by, dtype=tensor.dtype)
    moved = storage[by:].as_strided(tensor.shape, tensor.stride(), by)
    return moved.copy_(tensor)


def _two_inputs(static: bool = False) -> Builder:
    b = Builder()
    b.tensor("x", (4, 4), static=static)
    b.tensor("y", (4, 4))
    b.launch(add, [b.buffer("a", (4, 4))], ["x", "y"])
    b.output("a")
    return b


def test_inputs_at_odd_addresses_are_copied_first() -> None:
    module = _module(_two_inputs())
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    for a, b in ((x, y), (_off(x), y), (x, _off(y, 3)), (_off(x), _off(y)), (x, y)):
        torch.testing.assert_close(module([a, b])[0], x + y)


def test_a_parameter_at_an_odd_address_is_copied() -> None:
    b = _two_inputs(static=True)
    text = _module(b).text
    assert "y.data_ptr()" in text and "x.data_ptr()" not in text
    x, y = _off(torch.randn(4, 4)), torch.randn(4, 4)
    module = _module(b)
    for _ in range(2):
        torch.testing.assert_close(module([x, y])[0], x + y)
        torch.testing.assert_close(module([x, _off(y)])[0], x + y)


def test_a_parameter_that_moves_to_an_odd_address_is_followed() -> None:
    module = _module(_two_inputs(static=True), seen := [])
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    for now in (x, x, _off(x), _off(x, 4), x, _off(x, 2)):
        torch.testing.assert_close(module([now, y])[0], x + y)
        assert (seen[-1][1].data_ptr() == now.data_ptr()) == (now.data_ptr() % 16 == 0)


def test_what_is_written_to_a_parameter_that_moved_arrives_there() -> None:
    b = Builder()
    b.tensor("x", (4, 4), static=True)
    b.launch(lambda x: x.add_(1), ["x"], [])
    module = _module(b)
    for x in (torch.zeros(4, 4), _off(torch.zeros(4, 4)), torch.zeros(4, 4)):
        module([x])
        assert bool((x == 1).all())


def test_what_is_written_to_an_input_arrives_there() -> None:
    b = Builder()
    b.tensor("x", (4, 4))
    b.launch(lambda x: x.add_(1), ["x"], [])
    module = _module(b)
    for x in (torch.zeros(4, 4), _off(torch.zeros(4, 4))):
        module([x])
        assert bool((x == 1).all())


def test_an_expanded_input_is_copied_as_it_is() -> None:
    b = Builder()
    b.tensor("x", (4, 4), (0, 1))
    b.launch(add_one, [b.buffer("a", (4, 4))], ["x"])
    b.output("a")
    row = _off(torch.randn(4))
    seen: list[list[torch.Tensor]] = []
    torch.testing.assert_close(_module(b, seen)([row.expand(4, 4)])[0], row.expand(4, 4) + 1)
    assert seen[0][1].stride() == (0, 1)


def test_results_of_operators_at_odd_addresses_are_copied() -> None:
    b = Builder()
    b.tensor("x", (4, 4))
    b.buffer("a", (4, 4))
    b.objects["odd"] = lambda x: _off(x * 2)
    b.call("object.odd", [b.buffers["x"].view()], ["a"])
    b.launch(add_one, [b.buffer("b", (4, 4))], ["a"])
    b.output("b")
    x = torch.randn(4, 4)
    torch.testing.assert_close(_module(b)([x])[0], x * 2 + 1)


def test_nothing_is_checked_where_nothing_is_assumed() -> None:
    b = _two_inputs()
    assert "data_ptr" not in b.text() and "ALIGNED = ()" in b.text()


@pytest.mark.parametrize("address", ["any", "aligned"])
def test_addresses_that_are_known_are_not_checked(address: str) -> None:
    b = Builder()
    b.tensor("x", (4,))
    b.inputs[0] = GraphInput("x", "tensor", address=address)
    b.launch(add_one, [b.buffer("a", (4,))], ["x"])
    b.output("a")
    assert "data_ptr" not in _module(b).text


class FakeDevices:
    """A module like torch's for a type of device, with a current device that is a number."""

    def __init__(self, count: int) -> None:
        self.count, self.now, self.entered = count, 0, 0

    def device_count(self) -> int:
        return self.count

    def current_device(self) -> int:
        return self.now

    @contextmanager
    def device(self, index: int):
        before, self.now = self.now, index
        self.entered += 1
        yield
        self.now = before


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> FakeDevices:
    made = FakeDevices(2)
    monkeypatch.setattr(torch, "get_device_module", lambda device: made)
    monkeypatch.delattr(torch._C, "_cuda_getDevice", raising=False)
    return made


def test_the_device_of_a_program_is_current_while_it_runs(devices: FakeDevices) -> None:
    seen: list[int] = []
    call = native.on_device(lambda args: seen.append(devices.now), "cuda:1")
    call([])
    devices.now = 1
    call([])
    assert seen == [1, 1] and devices.entered == 1


@pytest.mark.parametrize("device", ["cuda:0", "cpu", ""])
def test_a_device_that_is_always_current_costs_nothing(devices: FakeDevices, device: str) -> None:
    devices.count = 1

    def call(args: list[object]) -> None: ...

    assert native.on_device(call, device) is call


def test_a_kernel_on_another_device_runs_with_that_current(devices: FakeDevices) -> None:
    b = Builder()
    for name, device in (("x", "cuda:0"), ("a", "cuda:0"), ("b", "cuda:1")):
        kind = "input" if name == "x" else "temp"
        if kind == "input":
            b.tensor(name, (4,))
        b.buffers[name] = Buffer(name, DType.f32, device, (4,), (1,), "float32", kind)
    b.launch(add_one, ["a"], ["x"], kernel="first")
    b.call("aten._to_copy.default", [b.buffers["a"].view()], ["b"])
    b.launch(add_one, ["b"], ["b"], kernel="second")
    b.output("b")
    lines = [line.strip() for line in b.text().splitlines()]
    assert "DEVICE = 'cuda:0'" in lines
    at = next(i for i, line in enumerate(lines) if line.startswith("second_1("))
    assert lines[at - 1] == "with on_cuda_1():"
    assert not lines[next(i for i, line in enumerate(lines) if line.startswith("first_0(")) - 1].startswith(
        "with"
    )


def test_layouts_are_conformed_to() -> None:
    x = torch.randn(3, 4)
    assert checks.conform(x, (3, 4), (4, 1), 16) is x
    assert checks.conform(_off(x), (3, 4), (4, 1)).data_ptr() % 16
    found = checks.conform(_off(x), (3, 4), (4, 1), 16)
    assert found.data_ptr() % 16 == 0 and torch.equal(found, x)
