"""Packages that run without Python and without torch compute what the model computes."""

from __future__ import annotations

import copy
import re
import runpy
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from torch.export import Dim, export

from native_runner import NativeResult, build, call, libraries_of
from packaged_models import BATCH, exported, mixed
from polyfuse import cli
from polyfuse.aot import load, package
from polyfuse.base.errors import PackageError

EXAMPLES = Path(__file__).parents[3] / "examples"


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.outside = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.inside(x).view(b, t, 3, 2, 8).permute(2, 0, 3, 1, 4)
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outside(y.transpose(1, 2).reshape(b, t, c))


class Pixels(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
        )
        self.last = torch.nn.Linear(8, 5)

    def forward(self, x):
        return self.last(self.layers(x).mean((2, 3)))


class Types(torch.nn.Module):
    """Integers, truth values, 16-bit numbers, a table, a constant, and results that are no tensors."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 6)

    def forward(self, ids, keep, half, count: int):
        found = torch.where(
            keep.unsqueeze(-1), self.table(ids), torch.tensor([1.0, -2.0, 0.0, 3.0, 4.0, 5.0])
        )
        return {
            "found": found,
            "any": keep.any(0),
            "half": half.to(torch.float32).sum(-1).to(torch.bfloat16) * count,
            "ids": ids,
            "rest": (ids.shape[0], None, 3, 2.5, True, count + 1, ids[:1]),
        }


class Writes(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x):
        self.total.add_(x.sum(0))
        x.mul_(2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("native")


def made(folder, model, *args, name="model", **named):
    return package(model.eval(), args, path=folder / f"{name}.pf", native=True, **named)


def check(result: NativeResult, model: object) -> None:
    assert result.error == ""
    leaves = torch.utils._pytree.tree_leaves(model, is_leaf=lambda leaf: leaf is None)
    assert len(result.results) == len(leaves)
    for mine, theirs in zip(result.results, leaves, strict=True):
        if theirs is None:
            assert mine is None
        else:
            wanted = torch.as_tensor(theirs, dtype=DTYPES.get(type(theirs)))
            torch.testing.assert_close(mine, wanted, equal_nan=True)


DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}


@pytest.fixture(scope="module")
def attention(folder):
    torch.manual_seed(0)
    shapes = ({0: Dim("batch", **BATCH), 1: Dim("tokens", min=2, max=40)},)
    model = Attention()
    return model, made(folder, model, torch.randn(3, 7, 16), name="attention", dynamic_shapes=shapes)


def test_matmuls_and_attention_of_any_size(attention):
    model, path = attention
    inputs = [torch.randn(batch, tokens, 16) for batch, tokens in ((2, 2), (3, 7), (64, 40), (5, 33))]
    for x, result in zip(inputs, call(path, [[x] for x in inputs]), strict=True):
        check(result, model(x))


@pytest.mark.slow
def test_views_of_attention(folder):
    class Views(torch.nn.Module):
        def forward(self, x):
            y = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
            return y.transpose(1, 2).reshape(x.shape[0], -1, 16).view(-1, 16)

    x = torch.randn(2, 2, 5, 8)
    sizes = {0: Dim("batch", **BATCH), 2: Dim("tokens", min=2, max=40)}
    with torch.no_grad():  # as for inference: with gradients, torch lays the result out otherwise
        path = made(folder, Views(), x, name="views", dynamic_shapes=(sizes,))
    x = torch.randn(3, 2, 9, 8)
    check(call(path, [[x]])[0], Views()(x))


def test_python_loads_the_same_package(attention):
    model, path = attention
    x = torch.randn(4, 9, 16)
    torch.testing.assert_close(load(path)(x), model(x))


def test_no_library_of_python_or_torch_is_needed(attention, tmp_path):
    _, path = attention
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
    needed = libraries_of(tmp_path / "native" / "forward.so")
    assert "libc.so" in needed
    assert "python" not in needed and "torch" not in needed and "not found" not in needed


def test_the_folder_of_an_extracted_package(attention, tmp_path):
    model, path = attention
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path)
    x = torch.randn(3, 5, 16)
    check(call(tmp_path, [[x]])[0], model(x))


def test_threads_and_memory_of_the_caller(attention):
    model, path = attention
    x = torch.randn(9, 11, 16)
    check(call(path, [[x]] * 3, threads=8)[2], model(x))
    check(call(path, [[x]], given=True)[0], model(x))


def test_other_layouts_are_copied(attention):
    model, path = attention
    for x in (
        torch.randn(16, 5, 4).permute(2, 1, 0),
        torch.randn(4, 5, 32)[..., ::2],
        torch.randn(5, 16).expand(3, 5, 16),
    ):
        check(call(path, [[x]])[0], model(x))


@pytest.mark.parametrize(
    ("x", "reason"),
    [
        (torch.randn(65, 7, 16), "size 0 of x is 65, and"),
        (torch.randn(3, 7, 17), "size 2 of x is 17 where 16 was compiled"),
        (torch.randn(3, 16), "x has 2 dimensions where 3 were compiled"),
        (torch.randn(3, 7, 16).double(), "x is of type float64 where float32 was compiled"),
    ],
)
def test_wrong_arguments_are_refused(attention, x, reason):
    (result,) = call(attention[1], [[x]])
    assert reason in result.error


@pytest.mark.slow
def test_an_example_with_expanded_dimensions_takes_no_other_layout(folder):
    """A copy of the elements into one that they share would keep the last."""
    x, model = torch.randn(5, 1).expand(5, 4), torch.nn.Softmax(0)
    path = made(folder, model, x, name="expanded", dynamic_shapes=({0: Dim("rows", min=0, max=9)},))
    inputs = [torch.randn(3, 1).expand(3, 4), torch.randn(0, 4)]
    with pytest.raises(PackageError, match="elements would share memory"):
        load(path)(torch.randn(3, 4))
    *fitting, other = call(path, [*([x] for x in inputs), [torch.randn(3, 4)]])
    for x, result in zip(inputs, fitting, strict=True):
        check(result, model(x))
    assert "was compiled with elements that share memory" in other.error


@pytest.mark.slow
def test_convolutions(folder):
    torch.manual_seed(0)
    model, x = Pixels(), torch.randn(4, 3, 11, 9)
    path = made(folder, model, x, name="pixels", dynamic_shapes=({0: Dim("batch", **BATCH)},))
    for x in (torch.randn(2, 3, 11, 9), torch.randn(7, 3, 11, 9)):
        check(call(path, [[x]])[0], model(x))


def test_types_and_results(folder):
    model = Types()
    ids, keep = torch.randint(10, (4, 3)), torch.rand(4, 3) < 0.5
    half = torch.randn(5, 6).half()
    half[0, 0], half[1, 1], half[2, 2] = float("nan"), float("inf"), -0.0
    batch = Dim("batch", **BATCH)
    shapes = ({0: batch}, {0: batch}, None, Dim.DYNAMIC)
    path = made(folder, model, ids, keep, half, 3, name="types", dynamic_shapes=shapes)
    for rows in (2, 9):
        ids, keep = torch.randint(10, (rows, 3)), torch.rand(rows, 3) < 0.5
        (result,) = call(path, [[ids, keep, half, torch.tensor(7)]])
        wanted = model(ids, keep, half, 7)
        check(result, wanted)
        assert result.same[3] == 0 and result.same[-1] == 0


def test_arguments_and_buffers_that_are_written_to(folder):
    model = Writes()
    path = made(folder, model, torch.randn(3, 4), name="writes")
    given = torch.randn(3, 4)
    one, two = call(path, [[given], [given]])
    assert one.results == two.results == (None,)
    torch.testing.assert_close(one.inputs[0], given * 2)
    wide = torch.randn(4, 3)
    torch.testing.assert_close(call(path, [[wide.t()]])[0].inputs[0], wide.t() * 2)


@pytest.mark.slow
def test_each_model_has_its_own_buffers(folder):
    path = package(exported(mixed()), path=folder / "mixed.pf", native=True)
    x, y = torch.randn(5, 8), torch.randn(6)
    for result in (*call(path, [[x, y], [x, y]]), *call(path, [[x, y]], threads=4)):
        check(result, copy.deepcopy(mixed())(x, y.clone(), scale=3))
        torch.testing.assert_close(result.inputs[1], y * 2)
        assert result.same[-1] == 1


def test_empty_tensors_and_nothing_to_compute(folder):
    class Empty(torch.nn.Module):
        def forward(self, x, y):
            return x, torch.cat([y, y[:0], y]), (x * 2).sum(0), y.new_zeros(0, 3)

    x, y = torch.randn(0, 4), torch.randn(3)
    path = made(folder, Empty(), x, y, name="empty")
    check(call(path, [[x, y]])[0], Empty()(x, y))


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_sorting_of_fractions(folder, dtype):
    class Sorted(torch.nn.Module):
        def forward(self, x):
            most = torch.topk(x, 3, 0).values, torch.topk(x, 2, largest=False).values
            return (
                most,
                torch.sort(x, 1, descending=True),
                torch.sort(x.t(), stable=True, dim=-1),
                x.argsort(0),
            )

    x = torch.randint(-9, 9, (4, 8)).to(dtype) / 2  # many are equal: their order counts
    x[0, 3], x[1, 2], x[2, 5], x[3, 0], x[3, 4] = float("nan"), float("inf"), -float("inf"), -0.0, 0.0
    path = made(folder, Sorted(), x, name=f"sorted{dtype}")
    model = Sorted()(x)
    # torch keeps the order of equal elements where that is asked for alone
    model = (*model[:1], torch.sort(x, dim=1, descending=True, stable=True), *model[2:3], stable_positions(x))
    check(call(path, [[x]])[0], model)


def stable_positions(x: torch.Tensor) -> torch.Tensor:
    return torch.sort(x, dim=0, stable=True).indices


@pytest.mark.slow
def test_sorting_of_integers_of_any_size(folder):
    class Sorted(torch.nn.Module):
        def forward(self, x, keep):
            found = x.sort(dim=1, stable=True)
            return found, torch.topk(x, 2, 1).values, keep.sort(dim=0, stable=True), x[0, 0].sort()

    batch = Dim("batch", **BATCH)
    x, keep = torch.randint(-5, 5, (4, 6)), torch.rand(4, 6) < 0.5
    path = made(folder, Sorted(), x, keep, name="integers", dynamic_shapes=({0: batch}, {0: batch}))
    x, keep = torch.randint(-5, 5, (64, 6)), torch.rand(64, 6) < 0.5
    x[1, 1], x[2, 2] = torch.iinfo(torch.int64).max, torch.iinfo(torch.int64).min
    check(call(path, [[x, keep]])[0], Sorted()(x, keep))


@pytest.mark.slow
def test_transposed_convolutions(folder):
    model = torch.nn.Sequential(
        torch.nn.ConvTranspose2d(
            3, 4, (3, 2), stride=(2, 3), padding=1, output_padding=(1, 0), dilation=(1, 2)
        ),
        torch.nn.ConvTranspose2d(4, 6, 3, padding=3, groups=2, bias=False),
    )
    x = torch.randn(4, 3, 6, 5)
    path = made(folder, model, x, name="transposed", dynamic_shapes=({0: Dim("batch", **BATCH)},))
    x = torch.randn(7, 3, 6, 5)
    check(call(path, [[x]])[0], model(x))


class Enlarges(torch.nn.Module):
    """Joins what it enlarges with the image before, as a U-Net does."""

    def __init__(self, window, **more):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.down = torch.nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.grow = torch.nn.ConvTranspose2d(32, 16, window, 2, **more)
        self.last = torch.nn.Conv2d(32, 16, 3, padding=1)

    def forward(self, x):
        x = self.first(x).relu()
        return self.last(torch.cat([x, self.grow(self.down(x))], 1))


@pytest.mark.quick(1)
@pytest.mark.parametrize(("window", "more"), [(2, {}), (3, {"padding": 1, "output_padding": 1})])
def test_transposed_convolutions_of_images_have_channels_last(folder, window, more):
    model, x = Enlarges(window, **more), torch.randn(3, 3, 12, 10)
    sizes = ({0: Dim("batch", **BATCH)},)
    path = made(folder, model, x, name=f"grow{window}", dynamic_shapes=sizes)
    x = torch.randn(5, 3, 12, 10)
    check(call(path, [[x]])[0], model(x))
    found = load(path)
    weight = found.constants["grow.weight"]
    # windows side by side: a matrix for each of their pixels; others are laid out at each call
    assert (weight.permute(2, 3, 1, 0).is_contiguous()) == (window == 2)
    with zipfile.ZipFile(path) as archive:
        packed = set(re.findall(rb"call\d+_packed", archive.read("programs/forward.py")))
    assert len(packed) == (4 if window == 2 else 3)
    torch.testing.assert_close(found(x), model(x))
    replaced = {"grow.weight": torch.randn_like(model.grow.weight)}
    model.load_state_dict(replaced, strict=False)
    torch.testing.assert_close(load(path, constants=replaced)(x), model(x))


@pytest.mark.slow
def test_parts_that_are_joined(folder):
    class Joined(torch.nn.Module):
        def forward(self, x, y):
            return torch.cat([x, y, x], 1), torch.cat([x.transpose(1, 2), y.transpose(1, 2)], -1)

    batch = Dim("batch", **BATCH)
    x, y = torch.randn(4, 5, 6), torch.randn(4, 3, 6)
    path = made(folder, Joined(), x, y, name="joined", dynamic_shapes=({0: batch}, {0: batch}))
    check(call(path, [[x[:2], y[:2]]])[0], Joined()(x[:2], y[:2]))


def test_trials_choose_among_own_kernels_alone(folder):
    model, x = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.Softmax(-1)), torch.randn(16, 24)
    options = {"gemm": "fastest", "autotune_backends": True}
    path = made(folder, model, x, name="tuned", options=options)
    check(call(path, [[x]])[0], model(x))


@pytest.mark.slow
def test_several_entries(folder):
    class Twice(torch.nn.Module):
        def forward(self, x):
            return x * 2

    class Once(torch.nn.Module):
        def forward(self, x):
            return x + 1

    x = torch.randn(5)
    programs = {"twice": export(Twice(), (x,)), "once": export(Once(), (x,))}
    path = package(programs, path=folder / "several.pf", native=True)
    check(call(path, [[x]], entry="twice")[0], x * 2)
    check(call(path, [[x]], entry="once")[0], x + 1)


class Convolves(torch.nn.Module):
    """Only the first weight is read by a convolution over several channels, and by nothing else."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        first, deep, other = self.layers
        y = deep(torch.relu(first(x)))
        return other(y) * other.weight.sum()


class Shows(Convolves):
    def forward(self, x):
        return self.layers[0].weight * x.mean()


@pytest.mark.quick(1)
@pytest.mark.parametrize("shown", [False, True])
def test_weights_of_convolutions_lie_as_kernels_read_them(folder, shown):
    torch.manual_seed(0)
    conv = torch.nn.Conv2d
    layers = torch.nn.ModuleList(
        [conv(4, 8, 3, padding=1), conv(8, 8, 3, groups=8), conv(8, 4, 2, bias=False)]
    ).eval()
    model, shows, x = Convolves(layers), Shows(layers), torch.randn(2, 4, 9, 9)
    programs = {"forward": export(model, (x,))}
    if shown:
        programs["shows"] = export(shows, (x,))
    path = package(programs, path=folder / f"convolves{shown}.pf", native=True)
    check(call(path, [[x]], entry="forward")[0], model(x))
    found = load(path)
    torch.testing.assert_close(found["forward"](x), model(x))
    last = [name for name, value in found.constants.items() if not value.is_contiguous()]
    assert last == ([] if shown else ["layers.0.weight"])
    layers[0].weight.data.normal_()
    replaced = load(path, constants={"layers.0.weight": layers[0].weight})
    torch.testing.assert_close(replaced["forward"](x), model(x))
    if shown:
        torch.testing.assert_close(replaced["shows"](x), shows(x))


@pytest.mark.slow
def test_weights_that_are_parts_of_one_memory(folder):
    """As `vector_to_parameters` leaves them: of one storage, and here of one shape."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Conv2d(4, 4, 3, bias=False) for _ in range(2))).eval()
    torch.nn.utils.vector_to_parameters(torch.randn(2 * 4 * 4 * 9), model.parameters())
    x = torch.randn(2, 4, 9, 9)
    found = load(made(folder, model, x, name="parts"))
    torch.testing.assert_close(found(x), model(x), rtol=1e-4, atol=1e-4)
    assert not any(weight.is_contiguous() for weight in found.constants.values())


def test_what_needs_python_is_refused_by_name(folder):
    class Waves(torch.nn.Module):
        def forward(self, x):
            return torch.fft.rfft(x).abs()

    with pytest.raises(PackageError, match=r"the entry forward needs Python: the operator aten\._fft_r2c"):
        made(folder, Waves(), torch.randn(6), name="waves")

    class Found(torch.nn.Module):
        def forward(self, x):
            return torch.nonzero(x)

    with pytest.raises(PackageError, match=r"the entry forward needs Python: the operator aten\.nonzero"):
        made(folder, Found(), torch.randn(6), name="found")
    with pytest.raises(PackageError, match="weights are read from the package"):
        made(folder, Pixels(), torch.randn(2, 3, 8, 8), name="without", weights=False)


def test_entries_that_share_a_buffer_which_one_writes_to(folder):
    model, x = Writes(), torch.randn(3, 4)
    one = export(model, (x,))
    with pytest.raises(PackageError, match=r"each entry has its own total"):
        package({"one": one, "two": one}, path=folder / "shared.pf", native=True)


def test_a_package_of_another_model_is_refused(attention, folder, tmp_path):
    _, path = attention
    small = package(exported(mixed()), path=tmp_path / "small.pf", native=True)
    with zipfile.ZipFile(path) as archive:
        archive.extract("native/forward.so", tmp_path)
    with zipfile.ZipFile(small) as archive:
        archive.extract("weights.bin", tmp_path)
    with pytest.raises(AssertionError, match="does not hold the weights of forward"):
        call(tmp_path, [[torch.randn(3, 7, 16)]])
    with pytest.raises(AssertionError, match=r"no package with native/forward\.so; make it with native=True"):
        call(package(exported(mixed()), path=tmp_path / "python.pf"), [[torch.randn(3, 8), torch.randn(6)]])


@pytest.mark.slow  # a model and a C program like those of the tests above
def test_the_example(folder):
    example = runpy.run_path(str(EXAMPLES / "package.py"))
    path = folder / "example.pf"
    example["make"](str(path), native=True)
    assert cli.main(["package", "extract", str(path), str(folder / "example")]) == 0
    program = build(EXAMPLES / "without_python.c", folder / "example" / "run", folder / "example" / "native")
    size = 3 * example["TOKENS"] * example["WIDTH"]
    x = ((torch.arange(size) % 13) / 13 - 0.5).view(3, example["TOKENS"], example["WIDTH"])
    with torch.no_grad():
        wanted = example["model"]()(x)[:, 0, :3]
    for location in (path, folder / "example"):
        done = subprocess.run([str(program), str(location), "3"], capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        rows = [line.split()[2:] for line in done.stdout.splitlines() if line.startswith("sequence")]
        torch.testing.assert_close(torch.tensor([[float(n) for n in row] for row in rows]), wanted)
    refused = subprocess.run([str(program), str(path), "65"], capture_output=True, text=True, timeout=600)
    assert refused.returncode == 1 and "must be in 2..64" in refused.stderr
