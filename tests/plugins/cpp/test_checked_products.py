"""The option `check` names wrong launches of matmuls and convolutions, in matrix registers or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyfuse.checking import tally
from polyfuse.compiler.session import forget_sessions
from polyfuse.plugin import Config, Kernel, Launchable, Source
from polyfuse_cpp.backend import CppBackend

BF16 = torch.bfloat16
Launch = Callable[..., Any]


class Narrow(nn.Module):
    """A linear layer whose weight is stored in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (512, 256), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(512).to(BF16))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu((x @ self.weight.to(BF16).t()) * self.scale)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], torch.dtype]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(256, 512), nn.GELU()), (33, 256), BF16),
    "bytes": (Narrow, (16, 256), BF16),
    "image": (lambda: nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()), (1, 16, 20, 20), BF16),
    "line": (lambda: nn.Sequential(nn.Conv1d(32, 64, 3, padding=1), nn.GELU()), (1, 32, 100), BF16),
    "patches": (lambda: nn.Conv2d(3, 64, 16, 16), (1, 3, 64, 64), BF16),
    "upsampled": (lambda: nn.Sequential(nn.ConvTranspose2d(16, 8, 2, 2), nn.ReLU()), (1, 16, 12, 12), BF16),
    "single": (
        lambda: nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        (1, 16, 20, 20),
        torch.float32,
    ),
    "depthwise": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=32), (1, 32, 20, 20), torch.float32),
}


def flat(tensor: Tensor) -> Tensor:
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((extent,), (1,))


def one_is_off(launch: Launch, operands: tuple[Any, ...], written: list[int]) -> None:
    launch(*operands)
    found = flat(operands[written[0]])
    found[found.abs().argmax()] *= 1.03


def the_end_is_left_out(launch: Launch, operands: tuple[Any, ...], written: list[int]) -> None:
    end = flat(operands[written[0]])[-16:]
    before = end.clone()
    launch(*operands)
    end.copy_(before)


def honest(launch: Launch, operands: tuple[Any, ...], written: list[int]) -> None:
    launch(*operands)


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Let each launch of a C++ kernel go through a function."""
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    forget_sessions()
    torch.compiler.reset()
    written: dict[str, list[int]] = {}
    emit, load = CppBackend.emit, CppBackend.load

    def noted(self: CppBackend, kernel: Kernel, config: Config | None = None) -> Source:
        source = emit(self, kernel, config)
        written[source.key] = [k for k, arg in enumerate(kernel.args) if arg.kind in ("out", "inout")]
        return source

    def plant(defect: Callable[..., None]) -> None:
        def spoilt(self: CppBackend, folder: Path) -> Mapping[str, Launchable]:
            found = dict(load(self, folder))
            for key in written.keys() & found.keys():
                found[key] = lambda *o, k=key, f=found[key]: defect(f, o, written[k])
            return found

        monkeypatch.setattr(CppBackend, "load", spoilt)

    monkeypatch.setattr(CppBackend, "emit", noted)
    tally.begin(forget=True)
    yield plant
    tally.begin(forget=False)
    forget_sessions()


@pytest.mark.quick(1)
@pytest.mark.parametrize("defect", [one_is_off, the_end_is_left_out, honest])
@pytest.mark.parametrize("freezing", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_each_kernel_is_checked(name: str, freezing: bool, defect: Any, planted: Any) -> None:
    planted(defect)
    make, size, dtype = CASES[name]
    model, x = make().eval().to(dtype), torch.randn(size).to(dtype)
    options = {"check": "first", "freezing": freezing}
    with torch.no_grad():
        found = torch.compile(model, backend="polyfuse", dynamic=False, options=options)(x)
        torch.testing.assert_close(found, model(x), rtol=3e-2, atol=3e-2)
    checked = tally.result()
    assert checked.kernels and not checked.skipped
    assert len(checked.findings) == (0 if defect is honest else len(checked.kernels))
