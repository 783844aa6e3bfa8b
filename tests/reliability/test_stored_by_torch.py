"""What torch itself stores of compiled functions: used by a process whose cache folder is empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import preforked
from called_functions import Twice
from new_process import as_in_a_new_process
from polyfuse.base.settings import child_environment
from polyfuse.cache.graphs import graph_counts
from polyfuse.compiler.graph_cache.record import GraphRecord
from polyfuse.compiler.reports.report import last_reports


@pytest.fixture(autouse=True)
def _own_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    elsewhere(monkeypatch, tmp_path / "first")
    with torch._dynamo.config.patch(enable_aot_compile=True):  # as it is by default from torch 2.12 on
        yield
    elsewhere(monkeypatch, tmp_path / "last")


def elsewhere(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """As in a new process with another cache folder."""
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(folder))
    as_in_a_new_process()


def soft(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 3 + y, -1)


def twice(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return Twice.apply(x) + y


def rows_of_written(x: torch.Tensor) -> torch.Tensor:
    x.relu_()
    return x.flatten(0, 1)


def part() -> torch.Tensor:
    return torch.linspace(-2, 2, 364).view(7, 4, 13)[1:, :, 2:12]


def compiled_ahead(function: Callable[..., Any], path: Path, *args: Any, **options: Any) -> None:
    dynamic = options.pop("dynamic", None)
    function = torch.compile(function, backend="polyfuse", fullgraph=True, options=options, dynamic=dynamic)
    function.aot_compile((args, {})).save_compiled_function(str(path))


def loaded(path: Path) -> Callable[..., Any]:
    with open(path, "rb") as file:
        return torch.compiler.load_compiled_function(file)


CASES: dict[str, tuple[Callable[..., Any], bool, dict[str, Any]]] = {
    "inference": (soft, False, {"native_host": True}),
    "training": (soft, True, {}),
    "without a cache": (soft, False, {"cache": False}),
    "without the graph cache": (soft, True, {"graph_cache": False}),
    "bypassed": (twice, True, {}),
}


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", CASES)
def test_a_function_compiled_ahead_is_loaded(name, monkeypatch, tmp_path):
    function, grad, options = CASES[name]
    x, y = torch.randn(5, 30, requires_grad=grad), torch.randn(30)
    compiled_ahead(function, tmp_path / "function", x, y, **options)
    elsewhere(monkeypatch, tmp_path / "second")
    found = loaded(tmp_path / "function")
    result, expected = found(x, y), function(x, y)
    torch.testing.assert_close(result, expected)
    if grad:
        weight = torch.randn_like(expected)
        torch.testing.assert_close(
            torch.autograd.grad(result, x, weight), torch.autograd.grad(expected, x, weight)
        )
    assert not last_reports(), "nothing is compiled"


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.quick(1)
@pytest.mark.parametrize("grad", [False, True])
def test_a_view_of_a_written_input_of_a_function_compiled_ahead(grad, monkeypatch, tmp_path):
    def given() -> torch.Tensor:
        return part().requires_grad_(grad) * 1

    compiled_ahead(rows_of_written, tmp_path / "function", given(), dynamic=True)
    for number in range(2):
        elsewhere(monkeypatch, tmp_path / f"other {number}")
        found = loaded(tmp_path / "function")
        found.save_compiled_function(str(tmp_path / "function"))
        result, expected = found(given()), rows_of_written(given())
        assert result.stride() == expected.stride()
        torch.testing.assert_close(result, expected)
    assert not last_reports(), "nothing is compiled"


@pytest.mark.usefixtures("interpreted_kernels")
@pytest.mark.slow
def test_a_view_of_a_written_input_among_artifacts_of_the_cache(monkeypatch, tmp_path):
    for number in range(3):
        if number:
            saved = torch.compiler.save_cache_artifacts()
            assert saved is not None
            elsewhere(monkeypatch, tmp_path / f"other {number}")
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / f"other {number} torch"))
            torch.compiler.load_cache_artifacts(saved[0])
        result = torch.compile(rows_of_written, backend="polyfuse", dynamic=True)(part())
        assert (graph_counts().hits, graph_counts().misses) == ((1, 0) if number else (0, 1))
        torch.testing.assert_close(result, rows_of_written(part()))


def test_a_loaded_function_is_saved_again(monkeypatch, tmp_path):
    x, y = torch.randn(5, 30), torch.randn(30)
    compiled_ahead(soft, tmp_path / "function", x, y)
    elsewhere(monkeypatch, tmp_path / "second")
    loaded(tmp_path / "function").save_compiled_function(str(tmp_path / "again"))
    elsewhere(monkeypatch, tmp_path / "third")
    torch.testing.assert_close(loaded(tmp_path / "again")(x, y), soft(x, y))


def test_kernels_of_another_machine_are_built_again(monkeypatch, tmp_path):
    x, y = torch.randn(5, 30), torch.randn(30)
    compiled_ahead(soft, tmp_path / "function", x, y)
    elsewhere(monkeypatch, tmp_path / "second")
    monkeypatch.setattr(GraphRecord, "addresses", ())
    found = loaded(tmp_path / "function")
    assert list((tmp_path / "second" / "kernels").glob("*/*/contents.json"))
    torch.testing.assert_close(found(x, y), soft(x, y))


def test_artifacts_of_the_cache_travel(monkeypatch, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    x = torch.randn(5, 6)

    def step() -> None:
        result, expected = torch.compile(model, backend="polyfuse")(x), model(x)
        grads = (torch.autograd.grad(y.sum(), model[0].weight) for y in (result, expected))
        torch.testing.assert_close(*grads)
        torch.testing.assert_close(result, expected)

    step()
    assert graph_counts().misses == 1
    saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    for number in range(2):
        elsewhere(monkeypatch, tmp_path / f"other {number}")
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / f"other {number} torch"))
        torch.compiler.load_cache_artifacts(saved[0])
        step()
        assert (graph_counts().hits, graph_counts().misses) == (1, 0)
        # what was found can be handed on
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None


def test_artifacts_in_a_folder_that_everybody_may_write_to_are_not_read(monkeypatch, tmp_path):
    x, y = torch.randn(5, 30), torch.randn(30)
    torch.compile(soft, backend="polyfuse")(x, y)
    saved = torch.compiler.save_cache_artifacts()
    assert saved is not None
    elsewhere(monkeypatch, tmp_path / "second")
    torch.compiler.load_cache_artifacts(saved[0])
    (tmp_path / "torch" / "aotautograd").chmod(0o777)
    torch.compile(soft, backend="polyfuse")(x, y)
    assert (graph_counts().hits, graph_counts().misses) == (0, 1)


SCRIPT = """
import sys, torch
from pathlib import Path
from one import one
from two import two
torch._dynamo.config.caching_precompile = True
path = Path(sys.argv[1])
if path.exists():
    torch.compiler.load_cache_artifacts(path.read_bytes())
x = torch.randn(5, 6, 5)[1:, :, :4]
for name in sys.argv[2:]:
    # aot_eager gives a view of a written input the numbers of another one, and Inductor does not compile it
    function = one if name == "polyfuse" else two
    torch.testing.assert_close(torch.compile(function, backend=name, dynamic=True)(x), function(x))
if not path.exists():
    path.write_bytes(torch.compiler.save_cache_artifacts()[0])
from polyfuse.compiler.reports.report import last_reports
print(len(last_reports()))
"""
FILES = {
    "main.py": SCRIPT,
    "one.py": "def one(x):\n    x.relu_()\n    return (x * 3).softmax(-1), x.flatten(0, 1)\n",
    "two.py": "import torch\n\ndef two(x): return (x.sin() + 1).sum(-1)\n",
}


def run(folder: Path, *backends: str) -> int:
    """How many graphs of ours a process compiled or looked up, once it has read what an earlier one saved."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    script = "import runpy, sys\nsys.argv[:] = sys.argv[1:]\nrunpy.run_path(sys.argv[0], run_name='__main__')"
    environment = child_environment(PYTHONPATH=str(folder))
    found = preforked.run(
        script, str(folder / "main.py"), str(folder / "saved"), *backends, environment=environment
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return int(found.stdout.split()[-1])


@pytest.mark.parametrize(
    "backends",
    [
        ("polyfuse",),
        pytest.param(("polyfuse", "inductor"), marks=pytest.mark.slow),
        pytest.param(("inductor", "polyfuse"), marks=pytest.mark.slow),
        pytest.param(("aot_eager", "polyfuse"), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_what_dynamo_stores_too(backends, monkeypatch, tmp_path):
    assert run(tmp_path, *backends) == 1
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path / "second"))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch_of_the_second"))
    assert run(tmp_path, *backends) == 0, "nothing is captured, looked up or compiled"


@pytest.mark.usefixtures("interpreted_kernels")
def test_floating_point_arguments_that_vary() -> None:
    """Of what Dynamo keeps, the guard on a number that was compiled in is not asked when it is found."""

    def scaled(x: torch.Tensor, factor: float) -> tuple[torch.Tensor, float]:
        return x * factor, factor * 2

    with torch._dynamo.config.patch(caching_precompile=True):
        run, x = torch.compile(scaled, backend="polyfuse"), torch.tensor([0.5, 1.0, 2.0])
        for factor in (0.3, 0.5, 0.7):
            torch.testing.assert_close(run(x, factor), scaled(x, factor))
