"""Indices given by data that are out of range: what eager mode raises, and nothing outside a tensor without
checks."""

from __future__ import annotations

import copy
import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from index_cases import CASES, IndexCase
from polyfuse.aot import load, package
from polyfuse.base.errors import is_from_model
from requirements import HALIDE

SOME = (
    "x[i]",
    "x[i, :, j]",
    "x[i][:1]",
    "embedding",
    "gather",
    "x[i] += v",
    "scatter_add",
    "nll_loss of a row",
)


def compiled(function: Callable[..., Any], dynamic: bool = False, **options: Any) -> Callable[..., Any]:
    torch.compiler.reset()
    settings = {"backends": ("interpreter",), **options}
    return torch.compile(function, backend="polyfuse", fullgraph=True, dynamic=dynamic, options=settings)


def raised(function: Callable[..., Any], arguments: Any) -> Exception | None:
    """What a function raises."""
    try:
        function(*arguments)
    except Exception as error:
        return error
    return None


def check(case: IndexCase, run: Callable[..., Any]) -> None:
    """Good indices, then wrong ones, each followed by good ones, as eager mode handles them."""
    wanted = case.function(*case.arguments())
    torch.testing.assert_close(run(*case.arguments()), wanted)
    for wrong in (case.low, case.high):
        eager = raised(case.function, case.arguments(wrong))
        error = raised(run, case.arguments(wrong))
        assert type(error) is type(eager), (wrong, error)
        if eager is None:
            torch.testing.assert_close(run(*case.arguments(wrong)), case.function(*case.arguments(wrong)))
        torch.testing.assert_close(run(*case.arguments()), wanted)


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", CASES)
def test_out_of_range_raises_as_eager_mode_does(name: str) -> None:
    check(CASES[name], compiled(CASES[name].function))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", SOME)
def test_with_dynamic_sizes(name: str) -> None:
    check(CASES[name], compiled(CASES[name].function, dynamic=True))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_in_cpp(name: str) -> None:
    check(CASES[name], compiled(CASES[name].function, backends=("cpp",)))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_in_halide(name: str) -> None:
    pytest.importorskip("halide", reason=HALIDE)
    check(CASES[name], compiled(CASES[name].function, backends=("halide",)))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cpp", "halide"])
@pytest.mark.parametrize("name", CASES)
def test_with_dynamic_sizes_everywhere(name: str, backend: str) -> None:
    check(CASES[name], compiled(CASES[name].function, dynamic=True, backends=(backend,)))


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x[i]", "index 5 is out of bounds for dimension 0 with size 5"),
        ("embedding", "index out of range in self"),
        ("take", "out of range: tried to access index 20 on a tensor of 20 elements."),
        ("nll_loss", "Target 4 is out of bounds."),
        ("gather", "index 5 is out of bounds for dimension 0 with size 5"),
        ("index_copy", r"index_copy_\(\): index 5 is out of bounds for dimension 0 with size 5"),
    ],
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_words_are_those_of_eager_mode(name: str, text: str, dynamic: bool) -> None:
    case = CASES[name]
    arguments = case.arguments(case.high)
    error = raised(compiled(case.function, dynamic), arguments)
    with pytest.raises(type(error), match=f"^{text}"):
        case.function(*arguments)
    with pytest.raises(type(error), match=f"^{text}"):
        raise error


def test_the_exception_is_marked_as_the_models_own() -> None:
    error = raised(compiled(CASES["x[i]"].function), CASES["x[i]"].arguments(7))
    assert error is not None and is_from_model(error)


def test_the_message_names_the_line_of_the_model() -> None:
    error = raised(compiled(CASES["x[i]"].function), CASES["x[i]"].arguments(7))
    assert any("index_cases.py" in note for note in getattr(error, "__notes__", ()))


def test_masked_scatter_with_too_few_values() -> None:
    x, mask = torch.randn(5, 4), torch.tensor([True, True, False, True, False])[:, None]
    run = compiled(lambda x, m, s: x.masked_scatter(m, s) + 1)
    enough, few = torch.randn(3, 4), torch.randn(1, 11)
    torch.testing.assert_close(run(x, mask, enough), x.masked_scatter(mask, enough) + 1)
    with pytest.raises(RuntimeError, match="source"):
        run(x, mask, few)


def test_long_indices_in_vectors() -> None:
    """Vectors, their remainders, and several threads."""
    run = compiled(lambda x, i: (x[i], x[i].sum()), backends=("cpp",), dynamic=True)
    x = torch.randn(100)
    for length in (15, 16, 1037, 200_003):
        good = torch.randint(-100, 100, (length,))
        torch.testing.assert_close(run(x, good)[0], x[good])
        for at in (0, length // 2, length - 1):
            bad = good.clone()
            bad[at] = 100 if at else -101
            with pytest.raises(IndexError, match=f"^index {int(bad[at])} is out of bounds"):
                run(x, bad)


def test_several_graphs_of_indices_say_which_was_wrong() -> None:
    run = compiled(lambda x, i, j: x[i] + x.gather(0, j))
    x, good = torch.randn(3, 4), torch.tensor([0, 2, 1])
    rows = good[:, None].expand(3, 4)
    with pytest.raises(IndexError, match="index 3 is"):
        run(x, good + 1, rows)
    with pytest.raises(RuntimeError, match=r"index [34] is"):
        run(x, good, rows + 2)
    torch.testing.assert_close(run(x, good, rows), x[good] + x.gather(0, rows))


def test_one_index_is_checked_once(tmp_path: Any) -> None:
    def function(x: torch.Tensor, y: torch.Tensor, i: torch.Tensor) -> Any:
        return x[i], y[i] * 2, x[i % 5]

    run = compiled(function, dump=str(tmp_path))
    inputs = torch.randn(5, 4), torch.randn(5, 40), torch.tensor([4, -5])
    torch.testing.assert_close(run(*inputs), function(*inputs))
    assert raised(run, (*inputs[:2], torch.tensor([5, 0]))) is not None


def test_indices_made_of_positions_are_not_checked_for_each_element(tmp_path: Any) -> None:
    """As those of buckets of distances; nothing that is read could share the loop of the rows."""

    def bias(table: torch.Tensor) -> torch.Tensor:
        apart = torch.arange(6)[None] - torch.arange(5)[:, None]
        return F.embedding((apart.abs().float() + 1).log().long(), table).permute(2, 0, 1)

    table = torch.randn(3, 12)
    run = compiled(bias, dump=str(tmp_path))
    torch.testing.assert_close(run(table), bias(table))
    (text,) = (path.read_text() for path in tmp_path.rglob("graph.ir"))
    assert "scatter over (i0{5}, i1{6}) {" in text
    with pytest.raises(IndexError):
        run(table[:1])


def test_indices_that_are_in_range_by_themselves_need_no_check(tmp_path: Any) -> None:
    def function(x: torch.Tensor, i: torch.Tensor) -> Any:
        return (
            x[torch.arange(5)],
            x[i.clamp(0, 4)],
            x[i.to(torch.bool).long()],
            x[:, None].expand(5, 2, 4)[:, 1],
        )

    run = compiled(function, dump=str(tmp_path))
    inputs = torch.randn(5, 4), torch.tensor([9, -9])
    torch.testing.assert_close(run(*inputs), function(*inputs))
    texts = [path.read_text() for path in tmp_path.rglob("graph.ir")]
    assert texts and not any("raise_failed" in text for text in texts)


def test_what_is_masked_away_does_not_raise() -> None:
    """Elements that padding adds have no index, whatever is computed there."""
    run = compiled(lambda x, i: F.pad(x[i - 5], (0, 0, 3, 3)) + F.pad(i, (3, 3), value=99)[:, None])
    x, index = torch.randn(5, 4), torch.tensor([5, 9, 7])
    torch.testing.assert_close(
        run(x, index), F.pad(x[index - 5], (0, 0, 3, 3)) + F.pad(index, (3, 3), value=99)[:, None]
    )


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["x[i]", "embedding", "gather", "index_select", "x[i].sum"])
def test_without_checks_the_nearest_element_is_read(name: str) -> None:
    case = CASES[name] if name in CASES else CASES["sum of x[i]"]
    run = compiled(case.function, index_asserts=False)
    for wrong in (2**40, -(2**40)):
        torch.testing.assert_close(
            run(*case.arguments(wrong)), case.function(*case.arguments(4 if wrong > 0 else 0))
        )


def test_without_checks_nothing_is_written_out_of_range() -> None:
    x, values = torch.randn(3, 4), torch.ones(2, 4)
    run = compiled(lambda x, i, v: x.scatter(0, i, v), index_asserts=False)
    wrong = torch.tensor([[2**40] * 4, [1] * 4])
    torch.testing.assert_close(run(x, wrong, values), x.scatter(0, torch.tensor([[1] * 4]), values))


def test_gradients_with_checked_indices() -> None:
    weight, indices = torch.randn(5, 4, requires_grad=True), torch.tensor([4, 0, 4])
    run = compiled(lambda w, i: F.cross_entropy(F.embedding(i, w), i % 4))
    run(weight, indices).backward()
    found, weight.grad = weight.grad, None
    F.cross_entropy(F.embedding(indices, weight), indices % 4).backward()
    torch.testing.assert_close(found, weight.grad)
    with pytest.raises(IndexError, match="out of range"):
        run(weight, torch.tensor([5, 0, 1]))


def test_ignored_targets_are_no_indices() -> None:
    scores, targets = torch.randn(3, 4), torch.tensor([1, -100, 3])
    run = compiled(F.cross_entropy)
    torch.testing.assert_close(run(scores, targets), F.cross_entropy(scores, targets))
    with pytest.raises(IndexError, match="Target 4 is out of bounds"):
        run(scores, torch.tensor([1, 4, 3]))


def test_masks_and_empty_indices_pass() -> None:
    def function(x: torch.Tensor, mask: torch.Tensor, none: torch.Tensor) -> Any:
        changed = x.clone()
        changed[mask] = 0.0
        return changed, x[none], x.t()[none]

    inputs = torch.randn(3, 4), torch.tensor([True, False, True]), torch.empty(0, dtype=torch.int64)
    for dynamic in (False, True):
        torch.testing.assert_close(compiled(function, dynamic)(*inputs), function(*inputs))


def test_no_memory_is_lost_where_a_program_raises() -> None:
    run = compiled(lambda x, i: (x * 2)[i] + x.sum())
    x = torch.randn(5, 4)
    gone = weakref.ref(x)
    for _ in range(3):
        assert isinstance(raised(run, (x, torch.tensor([7]))), IndexError)
    del x
    gc.collect()
    assert gone() is None


class Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 6)

    def forward(self, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.table(index)[rows] * 2


def exported() -> tuple[torch.nn.Module, Any]:
    model = Table().eval()
    return model, torch.export.export(model, (torch.tensor([1, 2, 9]), torch.tensor([0, -1])))


def test_packages_raise(tmp_path: Any) -> None:
    model, program = exported()
    found = load(package(program, path=tmp_path / "table.pf"))
    good = torch.tensor([9, 0, 1]), torch.tensor([-3, 2])
    torch.testing.assert_close(found(*good), model(*good))
    with pytest.raises(IndexError, match=r"^index out of range in self"):
        found(torch.tensor([9, 0, 10]), good[1])
    with pytest.raises(IndexError, match=r"^index -4 is out of bounds for dimension 0 with size 3"):
        found(good[0], torch.tensor([-4, 2]))
    torch.testing.assert_close(copy.deepcopy(found(*good)), model(*good))


DIVISIONS: dict[str, Callable[[Any, Any], Any]] = {
    "a // b": lambda a, b: a // b,
    "a % b": lambda a, b: a % b,
    "fmod": torch.fmod,
    "cut off": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "rounded down": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "of a number": lambda a, b: 5 // b,
    "by one number": lambda a, b: a // b[-1],
    "of every row": lambda a, b: a[:, None] % b,
    "a part": lambda a, b: (a // b)[:2],
    "summed up": lambda a, b: (a % b).sum(),
    "chosen after": lambda a, b: torch.where(b != 0, a // b, 0),
}


def check_division(name: str, dtype: torch.dtype, dynamic: bool, backend: str) -> None:
    function = DIVISIONS[name]
    run = compiled(function, dynamic, backends=(backend,), strict=True)
    a, good = torch.arange(1, 40).to(dtype), torch.arange(39).remainder(7).add(1).to(dtype)
    bad = good.clone()
    bad[-1] = 0
    torch.testing.assert_close(run(a, good), function(a, good))
    assert str(raised(run, (a, bad))) == str(raised(function, (a, bad))) == "ZeroDivisionError"
    torch.testing.assert_close(run(a, good), function(a, good))


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", DIVISIONS)
def test_a_divisor_of_zero_raises_as_eager_mode_does(name: str) -> None:
    for dynamic in (False, True):
        check_division(name, torch.int64, dynamic, "interpreter")


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_a_divisor_of_zero_raises_in_generated_code(every: int) -> None:
    names, dtypes = ("a // b", "a % b", "of every row", "summed up"), (torch.int64, torch.uint8)
    for name, dtype in list(itertools.product(names, dtypes))[::every]:
        check_division(name, dtype, False, "cpp")


def test_a_divisor_of_zero_raises_with_halide() -> None:
    pytest.importorskip("halide", reason=HALIDE)
    check_division("a // b", torch.int32, False, "halide")


def test_what_divides_nothing_by_zero() -> None:
    run = compiled(lambda a, b: a // b, dynamic=True)
    for a, b in ((0, 0), (0, 1), (3, 3)):
        divisor = torch.zeros(b, dtype=torch.int64) + (a > 0)
        torch.testing.assert_close(run(torch.ones(a).long(), divisor), torch.ones(a).long())
    ignoring = compiled(lambda a, b: a % b, index_asserts=False)
    assert raised(ignoring, (torch.ones(3).long(), torch.zeros(3).long())) is None
    # no check where the divisor is known not to be zero
    run = compiled(lambda a, b: a // b.clamp(min=1) + a % 7)
    torch.testing.assert_close(run(torch.arange(3), torch.zeros(3).long()), 2 * torch.arange(3))
