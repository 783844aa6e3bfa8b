"""Packages with the option `freezing`: what follows from the weights is stored instead of them."""

from __future__ import annotations

import copy
import zipfile
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from native_runner import call
from polyfuse.aot import load, package
from polyfuse.base.errors import InvalidOptionError, PackageError

FROZEN = {"freezing": True}


class Network(nn.Module):
    """Normalised convolutions, one in groups and one of single pixels, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
        self.first = nn.BatchNorm2d(16)
        self.groups = nn.Conv2d(16, 32, 3, padding=1, groups=2)
        self.second = nn.BatchNorm2d(32)
        self.point = nn.Conv2d(32, 24, 1)
        self.head = nn.Linear(24, 5)
        for norm in (self.first, self.second):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
            nn.init.normal_(norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(self.stem(x)).relu()
        x = self.second(self.groups(x)).relu()
        return self.head(self.point(x).relu().mean((2, 3)))


def weight_bytes(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        return archive.getinfo("weights.bin").file_size


def exact(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return copy.deepcopy(model).double()(x.double()).to(x.dtype)


@pytest.mark.parametrize(
    "dynamic", [pytest.param(False, marks=pytest.mark.slow), True], ids=["static", "dynamic"]
)
def test_it_computes_what_the_model_computes_with_each_weight_once(tmp_path, dynamic):
    model, x = Network().eval(), torch.randn(2, 3, 20, 20)
    shapes = ({0: Dim("batch", min=2, max=16)},) if dynamic else None
    path = package(model, (x,), path=tmp_path / "frozen.pf", options=FROZEN, dynamic_shapes=shapes)
    found = load(path)
    for batch in (2, 5, 3) if dynamic else (2, 2):
        x = torch.randn(batch, 3, 20, 20)
        torch.testing.assert_close(found(x), exact(model, x), rtol=1e-5, atol=1e-5)
    gone = {"stem.weight", "first.weight", "first.running_var", "first.num_batches_tracked", "groups.weight"}
    assert not gone & set(found.constants) and "head.weight" in found.constants
    assert weight_bytes(path) <= 1.05 * sum(p.nbytes for p in model.parameters()) + 2048


def test_its_weights_cannot_be_replaced(tmp_path):
    model, x = Network().eval(), torch.randn(1, 3, 12, 12)
    path = package(model, (x,), path=tmp_path / "frozen.pf", options=FROZEN)
    found, before = load(path), model(x)
    bias = {"head.bias": torch.zeros(5)}
    with pytest.raises(PackageError, match="freezing"):
        found.load_constants(bias)
    with pytest.raises(PackageError, match="freezing"):
        load(path, constants=bias)
    with pytest.raises(InvalidOptionError, match="weights=False"):
        package(model, (x,), path=tmp_path / "none.pf", options=FROZEN, weights=False)
    torch.testing.assert_close(found(x), before, rtol=1e-5, atol=1e-5)


class Counts(nn.Module):
    """Writes to the buffer that scales what `Scales` convolves, and shows a parameter."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = conv
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x: torch.Tensor, unread: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.scale.add_(1.0)
        return self.conv(x), self.conv.bias


class Scales(nn.Module):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.conv = counts.conv
        self.register_buffer("scale", counts.scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x) * self.scale[:, None, None].sqrt()


def test_what_an_entry_writes_to_is_folded_in_none(tmp_path):
    counts = Counts(nn.Conv2d(4, 6, 3, padding=1)).eval()
    scales, x = Scales(counts).eval(), torch.randn(2, 4, 8, 8)
    programs = {"counts": export(counts, (x, x[:1])), "scales": export(scales, (x,))}
    found = load(package(programs, path=tmp_path / "two.pf", options=FROZEN))
    for _ in range(3):
        torch.testing.assert_close(found["scales"](x), scales(x), rtol=1e-5, atol=1e-5)
        result, bias = found["counts"](x, x[:1])
        torch.testing.assert_close(result, counts(x, x[:1])[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(bias, counts.conv.bias)


@pytest.mark.slow
def test_values_that_are_not_finite_stay_so(tmp_path):
    model, x = Network().eval(), torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        model.point.bias[3], x[1, 2, 4, 5] = float("inf"), float("nan")
    found = load(package(model, (x,), path=tmp_path / "frozen.pf", options=FROZEN))
    torch.testing.assert_close(found(x), model(x), rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.slow
def test_sixteen_bits(tmp_path):
    model, x = Network().eval().bfloat16(), torch.randn(2, 3, 16, 16, dtype=torch.bfloat16)
    found = load(package(model, (x,), path=tmp_path / "frozen.pf", options=FROZEN))(x)
    wanted = exact(model, x).float()
    assert found.dtype == torch.bfloat16
    assert (found.float() - wanted).abs().max() <= 2 * (model(x).float() - wanted).abs().max() + 1e-2


@pytest.mark.parametrize("dynamic", [pytest.param(False, marks=pytest.mark.slow), True], ids=["one", "any"])
@pytest.mark.parametrize("freezing", [False, True])
def test_it_runs_without_python(tmp_path, monkeypatch, freezing, dynamic):
    monkeypatch.setattr("polyfuse.autotune.gemm_candidates._FEW_NUMBERS", 0)
    model, x = Network().eval(), torch.randn(3, 3, 16, 16)
    shapes = ({0: Dim("batch", min=2, max=16)},) if dynamic else None
    options = {"freezing": freezing}
    path = package(model, (x,), path=tmp_path / "n.pf", options=options, native=True, dynamic_shapes=shapes)
    (result,) = call(path, [[x]])
    assert result.error == ""
    torch.testing.assert_close(result.results[0], exact(model, x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(load(path)(x), exact(model, x), rtol=1e-5, atol=1e-5)
    if freezing:
        return
    # each weight is stored once; what is packed of it is made when a model is created, here by looking at it
    with zipfile.ZipFile(path) as archive:
        assert b"checked.together.aten.as_strided_copy" in archive.read("programs/forward.py")
    assert weight_bytes(path) <= 1.05 * sum(p.nbytes for p in model.parameters()) + 2048
    with torch.no_grad():
        model.stem.weight.normal_(), model.groups.weight.normal_()
    replaced = load(path, constants={k: v for k, v in model.named_parameters() if k.endswith("weight")})
    torch.testing.assert_close(replaced(x), exact(model, x), rtol=1e-5, atol=1e-5)
