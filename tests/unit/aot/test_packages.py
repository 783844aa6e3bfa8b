"""Packages: what is packaged computes what the model computes, wherever it is loaded."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import pytest
import torch
from torch.export import Dim, export

import preforked
from packaged_models import exported, in_a_process, mixed
from polyfuse.aot import Package, load, package
from polyfuse.base.errors import InvalidOptionError, PackageError
from polyfuse.compiler.packages.programs import check_operators
from requirements import HALIDE

SCRIPT = """
import json, sys, torch
from polyfuse.aot import load
found = load(sys.argv[1])
given = torch.load(sys.argv[2], weights_only=True)
result = found(given["x"], given["y"], scale=3)
facts = {"z": result["z"], "y": given["y"], "sum": result["all"][0], "calls": found.constants["calls"]}
torch.save(facts, sys.argv[3])
print(json.dumps(list(sys.modules)))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return package(exported(mixed()), path=tmp_path_factory.mktemp("packages") / "mixed.pf")


@pytest.fixture
def loaded(path):
    return load(path)


def check(found: Package, model: torch.nn.Module, batch: int) -> None:
    x, y = torch.randn(batch, 8), torch.randn(6)
    mine, theirs = y.clone(), y.clone()
    result, wanted = found(x, mine, scale=3), copy.deepcopy(model)(x, theirs)
    torch.testing.assert_close(result, wanted)
    torch.testing.assert_close(mine, theirs)
    assert result["y"] is mine
    assert list(result) == ["z", "all", "y"] and result["all"][1] == [batch, None]


def test_a_package_computes_what_the_model_computes(loaded):
    for batch in (2, 4, 5, 64):
        check(loaded, mixed(), batch)


def test_it_is_loaded_without_a_compiler(path, tmp_path):
    x, y = torch.randn(7, 8), torch.randn(6)
    torch.save({"x": x, "y": y}, tmp_path / "in.pt")
    modules = set(
        in_a_process(
            SCRIPT,
            *(str(p) for p in (path, tmp_path / "in.pt", tmp_path / "out.pt")),
            POLYFUSE_CACHE_DIR=str(tmp_path / "cache"),
        )
    )
    found = torch.load(tmp_path / "out.pt", weights_only=True)
    wanted = mixed()(x, y)
    torch.testing.assert_close(found["z"], wanted["z"])
    torch.testing.assert_close(found["y"], wanted["y"])
    torch.testing.assert_close(found["sum"], wanted["all"][0])
    assert found["calls"] == 1
    packages = ("compiler", "frontend", "lowering", "schedule", "autotune", "program", "ir", "symbolic")
    heavy = {f"polyfuse.{package}" for package in (*packages, "plugin")} | {
        "sympy",
        "torch._dynamo",
        "pluggy",
    }
    assert sorted(modules & heavy) == []
    assert {name for name in modules if name.startswith("polyfuse_")} == {
        *("polyfuse_cpp", "polyfuse_cpp.bindings", "polyfuse_cpp.isa"),
        *("polyfuse_cpp.loading", "polyfuse_cpp.native_host", "polyfuse_cpp.native_host.series"),
        "polyfuse_cpp.prelude",
    }


def test_another_backend_loads_its_kernels_without_its_generator(tmp_path):
    pytest.importorskip("halide", reason=HALIDE)
    path = package(exported(mixed()), path=tmp_path / "halide.pf", options={"backends": ["halide", "cpp"]})
    x, y = torch.randn(7, 8), torch.randn(6)
    torch.save({"x": x, "y": y}, tmp_path / "in.pt")
    files = (str(p) for p in (path, tmp_path / "in.pt", tmp_path / "out.pt"))
    modules = set(in_a_process(SCRIPT, *files, POLYFUSE_CACHE_DIR=str(tmp_path / "cache")))
    assert "polyfuse_halide.loading" in modules
    forbidden = {"halide", "polyfuse_halide.codegen.kernel", "polyfuse.compiler", "polyfuse.ir"}
    assert sorted(modules & forbidden) == []
    torch.testing.assert_close(torch.load(tmp_path / "out.pt", weights_only=True)["z"], mixed()(x, y)["z"])


def test_equal_models_give_equal_files(path, tmp_path):
    other = package(exported(mixed()), path=tmp_path / "other.pf")
    assert other.read_bytes() == path.read_bytes()


def test_buffers_that_are_written_to_belong_to_one_loaded_package(path):
    first, second = load(path), load(path)
    first(torch.randn(3, 8), torch.randn(6), scale=3)
    first(torch.randn(3, 8), torch.randn(6), scale=3)
    assert first.constants["calls"] == 2 and second.constants["calls"] == 0


def test_arguments_by_name_and_by_position(loaded):
    x, y = torch.randn(3, 8), torch.randn(6)
    wanted = loaded(x, y.clone(), scale=3)["z"]
    for result in (loaded(x, y.clone()), loaded(y=y.clone(), x=x), loaded(x, y.clone(), 3)):
        torch.testing.assert_close(result["z"], wanted, rtol=0, atol=0)


def test_arguments_laid_out_otherwise(loaded):
    wide = torch.randn(8, 5)
    slices = torch.randn(12)[::2]
    before = slices.clone()
    result = loaded(wide.t(), slices, scale=3)
    wanted = mixed()(wide.t(), before)
    torch.testing.assert_close(result["z"], wanted["z"])
    torch.testing.assert_close(slices, before)
    assert result["y"] is slices


class Written(torch.nn.Module):
    def forward(self, x):
        x.tanh_()
        return x.flatten(0, 1)


def test_a_view_of_a_written_argument_with_gaps_of_any_size(tmp_path):
    """Strides that are symbols of their own come from the argument, not from its sizes."""
    example = torch.randn(12, 4, 10)[::2]
    sizes = ({0: Dim.AUTO, 2: Dim.AUTO},)
    run = load(package(Written(), (example,), path=tmp_path / "written.pf", dynamic_shapes=sizes))
    for memory in (torch.randn(12, 4, 10), torch.randn(10, 4, 7), torch.randn(6, 8, 5)):
        given, mine = (memory.clone()[::2, :4] for _ in range(2))
        torch.testing.assert_close(run(mine), Written()(given))
        torch.testing.assert_close(mine, given)
    doubled = torch.randn(6, 4, 20)[::2, :, ::2]  # copied: the last stride was compiled
    before = doubled.clone()
    torch.testing.assert_close(run(doubled), before.tanh().flatten(0, 1))
    torch.testing.assert_close(doubled, before.tanh())
    with pytest.raises(PackageError, match="sizes and strides of which"):
        run(torch.randn(6, 4, 10))
    with pytest.raises(PackageError, match="stride 0 of x makes"):
        run(torch.randn(4, 10, 7).permute(2, 0, 1))


def test_inputs_that_are_not_aligned(loaded):
    x = torch.randn(1 + 3 * 8)[1:].view(3, 8)
    torch.testing.assert_close(loaded(x, torch.ones(6))["z"], mixed()(x, torch.ones(6))["z"])


BAD = {
    "a size out of range": (lambda x, y: ((x[:1], y), {}), "size 0 of x makes"),
    "too large a size": (lambda x, y: ((torch.randn(65, 8), y), {}), "2..64"),
    "a static size": (lambda x, y: ((x, y[:3]), {}), "size 0 of y is 3 where 6 was compiled"),
    "a rank": (lambda x, y: ((x[0], y), {}), "x has size"),
    "a type": (lambda x, y: ((x.double(), y), {}), "x is torch.float64 on cpu where torch.float32 on cpu"),
    "no tensor": (lambda x, y: ((x, 3), {}), "y is 3 where a tensor"),
    "another constant": (lambda x, y: ((x, y), {"scale": 4}), "scale is 4 where 3 was compiled"),
    "a bool for a number": (lambda x, y: ((x, y), {"scale": True}), "scale is True"),
    "a missing one": (lambda x, y: ((x,), {}), "the argument y is missing"),
    "an unknown one": (lambda x, y: ((x, y), {"size": 3}), "the argument size is not known"),
    "one twice": (lambda x, y: ((x, y), {"y": y}), "the argument y was given twice"),
    "too many": (lambda x, y: ((x, y, 3, 4), {}), "4 arguments were given"),
    "a gradient": (lambda x, y: ((x.requires_grad_(), y), {}), "x needs a gradient"),
    "a nested one": (lambda x, y: (((x,), y), {}), "arguments are nested as"),
    "shared memory": (lambda x, y: ((y.as_strided((2, 8), (0, 0)), y), {}), "x and y share memory"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_arguments_are_refused(loaded, case):
    make, words = BAD[case]
    args, kwargs = make(torch.randn(3, 8), torch.randn(6))
    with pytest.raises(PackageError, match="forward: ") as caught:
        loaded(*args, **kwargs)
    assert words in str(caught.value) and caught.value.fix


def test_arguments_that_need_gradients_under_no_grad(loaded):
    x, y = torch.randn(3, 8, requires_grad=True), torch.randn(6)
    with torch.no_grad():
        result = loaded(x, y.clone())
    assert not result["z"].requires_grad
    torch.testing.assert_close(result["z"], mixed()(x, y)["z"])


def test_autocast_around_a_call_changes_nothing(loaded):
    x = torch.randn(3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        result = loaded(x, torch.ones(6))
    torch.testing.assert_close(result["z"], mixed()(x, torch.ones(6))["z"])


class Flattened(torch.nn.Module):
    def forward(self, x, n):
        return x.view(-1, 2).sum(0) + n, x[: x.shape[0] // 2], x


def test_derived_and_whole_sizes(tmp_path):
    half = Dim("half", min=2, max=32)
    shapes = {"x": {0: 2 * half}, "n": Dim.DYNAMIC}
    program = export(Flattened(), (torch.randn(8), 5), dynamic_shapes=shapes)
    found = load(package(program, path=tmp_path / "derived.pf"))
    for size, n in ((4, 3), (10, 7), (64, 1000)):
        x = torch.randn(size)
        result = found(x, n)
        torch.testing.assert_close(result, Flattened()(x, n))
        assert result[2] is x
    with pytest.raises(PackageError, match="size 0 of x is 9"):
        found(torch.randn(9), 3)
    with pytest.raises(PackageError, match="integer"):
        found(torch.randn(8), 3.0)


class Swaps(torch.nn.Module):
    def forward(self, a, b):
        before = a.clone()
        a.copy_(b)
        b.copy_(before)
        return a + 1


def test_mutations_that_read_each_other(tmp_path):
    found = load(package(Swaps(), (torch.randn(5), torch.randn(5)), path=tmp_path / "swaps.pf"))
    a, b = torch.randn(5), torch.randn(5)
    first, second = a.clone(), b.clone()
    torch.testing.assert_close(found(a, b), second + 1)
    assert torch.equal(a, second) and torch.equal(b, first)


class Edges(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.tensor([float("nan"), float("inf"), -0.0, 1.0])
        self.register_buffer("none", torch.empty(0, 3))
        self.register_buffer("grid", torch.randn(6, 4).t())

    def forward(self, x):
        return (
            x * self.table,
            self.none.sum(),
            self.grid + x[0][:, None],
            torch.nn.functional.interpolate(self.grid[None, None], scale_factor=2.0),
            torch.nn.functional.interpolate(x[None, None], scale_factor=1.5, mode="bilinear"),
        )


def test_constants_empty_tensors_and_strides(tmp_path):
    torch.manual_seed(1)
    model = Edges()
    x = torch.tensor([[1.0, 2.0, 3.0, float("nan")], [0.0, -0.0, 1.0, -1.0]])
    found = load(package(model, (torch.randn(2, 4),), path=tmp_path / "edges.pf"))
    torch.testing.assert_close(found(x), model(x), equal_nan=True)
    assert found.description.entries["forward"].operators == (), "kernels compute all of it"
    assert found.constants["grid"].stride() == (1, 4)


class Sorted(torch.nn.Module):
    def forward(self, x):
        return {"top": x.topk(2), "max": x.max(0)}


def test_named_tuples_of_torch_are_returned(tmp_path):
    path = package(Sorted(), (torch.randn(5, 4),), path=tmp_path / "sorted.pf")
    x = torch.randn(5, 4)
    for found in (load(path)(x), Sorted()(x)):
        assert type(found["top"]) is torch.return_types.topk
        torch.testing.assert_close(found["top"].values, x.sort(descending=True).values[:, :2])
        torch.testing.assert_close(found["max"].indices, x.argmax(0))


@dataclass
class Pair:
    first: torch.Tensor
    second: int


class Paired(torch.nn.Module):
    def forward(self, x):
        return Pair(x + 1, 7)


@pytest.mark.slow
def test_containers_that_nobody_registered(tmp_path):
    torch.export.register_dataclass(Pair, serialized_type_name="packaged.Pair")
    path = package(Paired(), (torch.randn(3),), path=tmp_path / "pair.pf")
    x = torch.randn(3)
    found = load(path)(x)
    assert type(found) is Pair and found.second == 7
    torch.testing.assert_close(found.first, x + 1)
    script = """
import sys
from polyfuse.aot import load
from polyfuse.base.errors import PackageError
try:
    load(sys.argv[1])
except PackageError as error:
    print(error)
"""
    said = preforked.run(script, str(path)).stdout
    assert "packaged.Pair" in said and "import its module before loading" in said


def test_several_entries_share_their_weights(tmp_path):
    torch.manual_seed(2)
    base = torch.nn.Linear(4, 4)

    class Encode(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base = base

        def forward(self, x):
            return self.base(x).relu()

    class Decode(Encode):
        def forward(self, x, y):
            return self.base(x) - y

    x, y = torch.randn(2, 4), torch.randn(2, 4)
    programs = {"encode": export(Encode(), (x,)), "decode": export(Decode(), (x, y))}
    found = load(package(programs, path=tmp_path / "two.pf"))
    assert found.entries == ("decode", "encode")
    assert sorted(found.constants) == ["base.bias", "base.weight"]
    torch.testing.assert_close(found["encode"](x), base(x).relu())
    torch.testing.assert_close(found["decode"](x, y), base(x) - y)
    with pytest.raises(PackageError, match="several entries"):
        found(x)
    with pytest.raises(PackageError, match="no entry 'forward'"):
        found["forward"]


def test_what_cannot_be_packaged_is_refused_with_a_reason(tmp_path):
    target = tmp_path / "refused.pf"
    with pytest.raises(PackageError, match="calls back into Python"):
        check_operators(("higher_order.triton_kernel_wrapper_mutation",), ())
    with pytest.raises(PackageError, match="needs the path"):
        package(mixed(), (torch.randn(2, 8), torch.randn(6)))
    with pytest.raises(PackageError, match="a function cannot be packaged"):
        package(test_equal_models_give_equal_files, (torch.randn(2, 8),), path=target)
    with pytest.raises(PackageError, match="part of an exported program"):
        package(exported(mixed()), (torch.randn(2, 8),), path=target)
    with pytest.raises(InvalidOptionError, match="weights=False"):
        package(exported(mixed()), path=target, options={"freezing": True}, weights=False)
    assert not list(tmp_path.iterdir())


class Resampled(torch.nn.Module):
    def forward(self, x, y):
        image, f = x[None, None], torch.nn.functional
        return (
            *(f.interpolate(image, scale_factor=2.0, mode=mode) for mode in ("nearest", "bicubic")),
            f.interpolate(image[0], scale_factor=1.5, mode="linear"),
            torch.addcmul(x, y, y, value=2),
            torch.lerp(x, y, 0.3),
            torch.xlogy(y, y),
            f.multilabel_margin_loss(x, torch.zeros_like(x, dtype=torch.int64)),
        )


@pytest.mark.parametrize("dtype", [pytest.param(torch.float32, marks=pytest.mark.slow), torch.bfloat16])
def test_operators_that_torch_takes_apart_itself(tmp_path, dtype):
    if dtype == torch.bfloat16:
        model = torch.nn.Sequential(torch.nn.LayerNorm(6), torch.nn.GELU(), torch.nn.Hardswish())
        model, args = model.to(dtype), (torch.rand(4, 6).to(dtype),)
    else:
        model, args = Resampled(), (torch.rand(4, 6), torch.rand(4, 6))
    found = load(package(model, args, path=tmp_path / "resampled.pf"))
    args = tuple(torch.rand_like(arg) for arg in args)
    torch.testing.assert_close(found(*args), model(*args))
