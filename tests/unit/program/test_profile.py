"""The report on kernels that the option `profile` prints."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

import preforked
from polyfuse.base.settings import child_environment
from polyfuse.runtime import profile


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(profile, "_print_at_exit", lambda: None)
    profile.forget()
    yield
    profile.forget()


class FakeDevice:
    """A clock that a kernel moves on; events show it once the device was waited for."""

    def __init__(self) -> None:
        self.now, self.capturing, self.waits = 0.0, False, 0

    def Event(self, enable_timing: bool) -> object:
        event = SimpleNamespace(at=0.0)

        def record() -> None:
            event.at = self.now

        def synchronize() -> None:
            self.waits += 1

        event.record, event.synchronize = record, synchronize
        event.elapsed_time = lambda other: other.at - event.at
        return event

    def is_current_stream_capturing(self) -> bool:
        return self.capturing


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    device = FakeDevice()
    monkeypatch.setattr(torch, "get_device_module", lambda name: device)
    return device


def test_bytes_over_time_by_the_clock_of_the_device(device):
    def kernel(*operands: object) -> None:
        device.now += 2.0

    x = torch.zeros(1000)
    launch = profile.metered("fused_add", "key", "somewhere", (1, 2, 0), kernel)
    other = profile.metered("fused_mul", "key2", "somewhere", (1,), lambda x: None)
    for _ in range(4):
        launch(x, x, 5)
    other(x)
    header, first, second = profile.report().splitlines()
    # three times 2 ms for three times 12000 bytes; the first launch is listed apart
    assert first.split() == ["6.000", "100.0%", "3", "2000.00", "0.0", "2.000", "fused_add"]
    assert second.split() == ["0.000", "0.0%", "0", "0.00", "0.0", "0.000", "fused_mul"] and "GB/s" in header


def test_rates_are_in_gigabytes_a_second(device):
    def kernel(operand: object) -> None:
        device.now += 1.0

    launch = profile.metered("k", "key", "somewhere", (1,), kernel)
    for _ in range(2):
        launch(SimpleNamespace(nbytes=3_000_000_000))
    assert profile.report().splitlines()[1].split()[4] == "3000.0"


def test_equal_kernels_share_a_line(device):
    for _ in range(3):
        profile.metered("k", "key", "somewhere", (), lambda: None)()
    assert len(profile.report().splitlines()) == 2
    assert profile.report().splitlines()[1].split()[2] == "2"


def test_what_is_recorded_for_later_is_not_measured(device):
    ran = []
    launch = profile.metered("k", "key", "somewhere", (), lambda: ran.append(1))
    device.capturing = True
    launch()
    assert ran == [1] and profile.report() == ""


def test_events_do_not_pile_up(device):
    launch = profile.metered("k", "key", "somewhere", (), lambda: None)
    for _ in range(profile._WAITING + 10):
        launch()
    assert device.waits == 10


def test_nothing_launched_nothing_printed(capsys):
    profile.metered("k", "key", "cpu", (), lambda: None)
    profile._print_report()
    assert profile.report() == "" and capsys.readouterr().err == ""


def test_the_option_prints_a_report_when_the_process_ends():
    script = (
        "import torch\n"
        "f = torch.compile(lambda x: (torch.relu(x) * 2) @ x, backend='polyfuse')\n"
        "for n in range(4): f(torch.randn(64, 64))\n"
    )
    done = preforked.run(script, environment=child_environment(POLYFUSE_PROFILE="1"))
    assert done.returncode == 0, done.stderr[-2000:]
    _, _, *lines = done.stderr[done.stderr.index("kernels of Polyfuse") :].splitlines()[:4]
    rows = {line.split()[-1]: line.split() for line in lines}
    assert set(rows) == {"fused_maximum_0", "aten.mm.out"}, "kernels by their names in the program, and calls"
    assert all(row[2] == "3" and float(row[5]) > 0 for row in rows.values()), "the first call counts apart"
