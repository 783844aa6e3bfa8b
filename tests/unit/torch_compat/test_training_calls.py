"""Graphs that are called without AOTAutograd's steps around them: what autograd promises of them holds."""

from __future__ import annotations

import contextvars
import gc
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._functorch import config as functorch_config
from torch.nn import functional as F

from polyfuse.torch_compat.tracing import dynamo

pytestmark = pytest.mark.usefixtures("interpreted_kernels")

AROUND = {"runtime_wrapper", "_runtime_wrapper", "forward", "backward", "_backward_impl"}
"""What AOTAutograd runs around a graph."""

Results = Sequence[torch.Tensor]


def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Two results with gradients and one without."""
    hidden = torch.tanh(x @ weight)
    return hidden * 2, hidden.sin().sum(), (x > 0).sum()


def inputs(rows: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    shapes = (rows, 6), (6, 5)
    return [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]


def gradients(results: Results, args: Sequence[torch.Tensor], **named: Any) -> Results:
    total = results[0].square().sum() + results[1]
    found: Results = torch.autograd.grad(total, args, **named)
    return found


def ready(called: Callable[..., Any] = function, **named: Any) -> Callable[..., Any]:
    """A compiled function that was called twice, also backwards."""
    compiled: Callable[..., Any] = torch.compile(
        called, backend="polyfuse", options={"strict": True}, **named
    )
    for _ in range(2):
        args = inputs()
        gradients(compiled(*args), args)
    return compiled


@pytest.fixture
def saved_buffers() -> Iterator[None]:
    """Backwards that leave what is saved as it is, as graphs need that are used again."""
    with functorch_config.patch({"donated_buffer": False}):
        yield


@contextmanager
def steps_of_torch() -> Iterator[list[str]]:
    """Python functions of AOTAutograd's module for calls that run meanwhile."""
    found: list[str] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.endswith("_aot_autograd/runtime_wrappers.py"):
            found.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(None)


def agree(compiled: Callable[..., Any], called: Callable[..., Any], args: Sequence[torch.Tensor]) -> None:
    got, expected = compiled(*args), called(*args)
    torch.testing.assert_close(got, expected)
    for mine, theirs in zip(got, expected, strict=True):
        assert mine.requires_grad == theirs.requires_grad
    torch.testing.assert_close(gradients(got, args), gradients(expected, args))


def test_a_step_takes_none_of_the_steps_around_graphs() -> None:
    compiled = ready()
    args = inputs()
    with steps_of_torch() as found:
        results = compiled(*args)
        total = results[0].sum() + results[1]
        total.backward()
    assert not AROUND.intersection(found)
    assert results[0].grad_fn is not None and "CompiledFunction" in results[0].grad_fn.name()
    assert results[0].grad_fn is results[1].grad_fn


def test_a_step_with_a_view_as_result_and_a_buffer_takes_none_either() -> None:
    def called(x: torch.Tensor, weight: torch.Tensor, count: torch.Tensor) -> Any:
        count.add_(1)
        hidden = x.view(2, 2, 6) @ weight  # a view of the matmul of all rows
        return hidden, hidden.sin().sum()

    compiled: Any = torch.compile(called, backend="polyfuse", options={"strict": True})
    count, other = torch.zeros(3), torch.zeros(3)
    for round_ in range(4):
        args, before = inputs(), count._version
        with steps_of_torch() as found:
            got = compiled(*args, count)
        expected = called(*args, other)
        torch.testing.assert_close((*got, count), (*expected, other))
        assert got[0]._base is None and count._version > before
        with steps_of_torch() as found_backwards:
            mine = gradients(got, args)
        torch.testing.assert_close(mine, gradients(expected, args))
        assert round_ == 0 or not AROUND.intersection((*found, *found_backwards))


def test_inference_takes_none_either() -> None:
    compiled = torch.compile(function, backend="polyfuse", options={"strict": True})
    args = [value.detach() for value in inputs()]
    expected = function(*args)
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            compiled(*args)
            compiled(*args)
            with steps_of_torch() as found:
                results = compiled(*args)
            assert torch.is_grad_enabled() is enabled
        assert not AROUND.intersection(found)
        torch.testing.assert_close(results, expected)


@pytest.mark.parametrize("dynamic", [None, True])
def test_results_and_gradients_agree(dynamic: bool | None) -> None:
    compiled = ready(dynamic=dynamic)
    for rows in (4, 4, 7, 4, 9):
        agree(compiled, function, inputs(rows))


def test_gradients_of_any_layout_and_of_one_result_alone() -> None:
    compiled, args = ready(), inputs()
    given = torch.randn(5, 4, dtype=torch.float64).t()
    expanded = torch.ones((), dtype=torch.float64).expand(4, 5)
    for gradient in (given, expanded):
        got = torch.autograd.grad(compiled(*args)[0], args, gradient)
        torch.testing.assert_close(got, torch.autograd.grad(function(*args)[0], args, gradient))
    got = torch.autograd.grad(compiled(*args)[1], args[:1])
    torch.testing.assert_close(got, torch.autograd.grad(function(*args)[1], args[:1]))


def test_inputs_that_are_views_and_such_that_are_not_differentiated() -> None:
    compiled = ready()
    (x, weight), (theirs, _) = inputs(), inputs()
    results = compiled(x[:, :], weight)
    assert all(result._base is None for result in results)
    got = torch.autograd.grad(results[0].sum(), (x, weight))
    torch.testing.assert_close(got, torch.autograd.grad(function(x, weight)[0].sum(), (x, weight)))
    results = compiled(x.detach(), weight)
    results[0].sum().backward()
    function(theirs.detach(), other := inputs()[1])[0].sum().backward()
    torch.testing.assert_close(weight.grad, other.grad)


def test_a_graph_that_is_used_twice(saved_buffers: None) -> None:
    compiled, args = ready(), inputs()
    results, expected = compiled(*args), gradients(function(*args), args)
    for again in (True, True, False):
        torch.testing.assert_close(gradients(results, args, retain_graph=again), expected)
    with pytest.raises(RuntimeError, match="second time"):
        gradients(results, args)


@pytest.mark.parametrize("again", [False, True])
def test_functions_that_ask_for_gradients_themselves(saved_buffers: None, again: bool) -> None:
    def stepped(x: torch.Tensor, weight: torch.Tensor) -> Results:
        return gradients(function(x.requires_grad_(), weight), (x, weight), retain_graph=again)

    compiled = torch.compile(stepped, backend="polyfuse", options={"strict": True}, dynamic=True)
    for rows in (3, 4, 2, 4):
        torch.testing.assert_close(compiled(*inputs(rows)), stepped(*inputs(rows)))


def test_gradients_of_gradients_are_refused_as_ever(saved_buffers: None) -> None:
    compiled, args = ready(), inputs()
    first = gradients(compiled(*args), args, create_graph=True)
    torch.testing.assert_close(first, gradients(function(*args), args))
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        first[0].sum().backward()


def test_a_saved_value_that_was_written_meanwhile() -> None:
    def called(x: torch.Tensor, weight: torch.Tensor) -> Any:
        hidden = x[:, :5] * weight[:4]
        return hidden, hidden.sum()

    compiled, args = ready(called), inputs()
    results = compiled(*args)
    with torch.no_grad():
        args[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(results, args)


@pytest.mark.slow
def test_hooks_on_saved_values_see_them() -> None:
    compiled, args = ready(), inputs()
    packed, unpacked = [], []

    def pack(value: torch.Tensor) -> torch.Tensor:
        packed.append(value.shape)
        return value.clone()

    def unpack(value: torch.Tensor) -> torch.Tensor:
        unpacked.append(value.shape)
        return value

    for _ in range(3):
        packed.clear()
        unpacked.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            results = compiled(*args)
        torch.testing.assert_close(gradients(results, args), gradients(function(*args), args))
        assert packed and sorted(packed) == sorted(unpacked)


def test_what_was_saved_is_given_back() -> None:
    compiled, args = ready(), inputs()
    results = compiled(*args)
    total = results[0].sum()
    node: Any = total.grad_fn
    seen = [weakref.ref(saved) for saved in node.next_functions[0][0].saved_tensors]
    mine = {id(value) for value in args}
    seen = [found for found in seen if id(found()) not in mine]
    total.backward()
    del results, total
    gc.collect()
    assert all(found() is None for found in seen)


@pytest.mark.slow
def test_without_gradients_and_with_casts_around_the_same_function() -> None:
    def called(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return function(x.float(), weight.float())

    compiled = ready(called)
    args = inputs()
    for _ in range(3):
        with torch.no_grad():
            results = compiled(*args)
        assert not results[0].requires_grad
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results, expected = compiled(*args), called(*args)
        torch.testing.assert_close(results, expected, atol=0.1, rtol=0.05)
        assert results[0].dtype == expected[0].dtype
        got, expected = compiled(*args), called(*args)
        torch.testing.assert_close(gradients(got, args), gradients(expected, args), atol=1e-4, rtol=1e-4)


def test_writes_to_inputs_and_results_that_are_inputs_or_views() -> None:
    def called(x: torch.Tensor, weight: torch.Tensor, count: torch.Tensor) -> Any:
        count.add_(1)
        hidden = torch.tanh(x @ weight)
        return hidden * 2, hidden.sum(), hidden.t(), x.view(-1), weight

    compiled: Any = torch.compile(called, backend="polyfuse", options={"strict": True})
    args, count, other = inputs(), torch.zeros(3), torch.zeros(3)
    for _ in range(4):
        got, expected = compiled(*args, count), called(args[0], args[1], other)
        torch.testing.assert_close(got, expected)
        assert got[4] is args[1] and got[3]._base is args[0]
        torch.testing.assert_close(gradients(got, args), gradients(expected, args))
        assert torch.equal(count, other)


@pytest.mark.slow
def test_statistics_of_batches_are_written_each_time() -> None:
    mine, theirs = torch.nn.BatchNorm1d(6).double(), torch.nn.BatchNorm1d(6).double()
    compiled = torch.compile(mine, backend="polyfuse", options={"strict": True})
    for rows in (4, 4, 4, 8, 8):
        (x, _), (y, _) = inputs(rows), inputs(rows)
        compiled(x).square().sum().backward()
        theirs(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
        torch.testing.assert_close(dict(mine.state_dict()), dict(theirs.state_dict()))


@pytest.mark.slow
def test_random_numbers_repeat_with_their_seed() -> None:
    def called(x: torch.Tensor, weight: torch.Tensor) -> Any:
        hidden = F.dropout(x @ weight, 0.5)
        return hidden, hidden.sum(), (hidden == 0).sum()

    compiled, args = ready(called), inputs()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results = compiled(*args)
        found.append((*results, *gradients(results, args)))
        torch.testing.assert_close(found[-1][3].eq(0).sum() >= 0, torch.tensor(True))
    torch.testing.assert_close(found[0], found[1])
    assert not torch.equal(found[0][0], found[2][0])


def test_a_switch_to_deterministic_algorithms_is_refused_as_ever() -> None:
    compiled, args = ready(), inputs()
    results = compiled(*args)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            gradients(results, args)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.slow
def test_threads_and_variables_of_contexts() -> None:
    compiled, results = ready(), {}
    variable = contextvars.ContextVar("variable", default=0)

    def run(number: int) -> None:
        variable.set(number)
        args = inputs(number)
        results[number] = gradients(compiled(*args), args), variable.get()

    for number in (4, 4):
        run(number)
    threads = [threading.Thread(target=run, args=(number,)) for number in (4, 4, 4, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    args = inputs(4)
    torch.testing.assert_close(results[4], (gradients(function(*args), args), 4))


@pytest.mark.slow
def test_transforms_of_compiled_functions() -> None:
    compiled, args = ready(), inputs()

    def loss(run: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        return lambda x, weight: run(x, weight)[1]

    expected = torch.func.grad(loss(function))(*args)
    peer = torch.compile(function, backend="aot_eager")
    refusal = ""
    try:
        torch.func.grad(loss(peer))(*args)
    except RuntimeError as error:  # torch refuses some, with any backend
        refusal = str(error)
    for _ in range(3):
        if refusal:
            with pytest.raises(RuntimeError, match=re.escape(refusal.splitlines()[0])):
                torch.func.grad(loss(compiled))(*args)
        else:
            torch.testing.assert_close(torch.func.grad(loss(compiled))(*args), expected)


def test_gradients_that_are_conjugated_or_negated() -> None:
    """They say so of themselves: their memory holds other numbers."""

    def joined(z: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex(torch.stack((z.real, z.imag), -1))

    def magnitude(run: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
        """The gradient of what is run is the negative of an imaginary part."""
        return torch.complex(torch.tensor(2.0), run(x)).conj().abs()

    def total(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum()

    z, x = torch.randn(3, 2, dtype=torch.complex64, requires_grad=True), torch.randn(4, requires_grad=True)
    given = torch.randn(3, 2, dtype=torch.complex64).conj()
    # the interpreter reads what tensors say of themselves
    options = {"backends": ["cpp"]}
    pairs, totals = (torch.compile(f, backend="polyfuse", options=options) for f in (joined, total))
    for _ in range(3):
        found = torch.autograd.grad(pairs(z), z, given)
        torch.testing.assert_close(found, torch.autograd.grad(joined(z), z, given))
        found = torch.autograd.grad(magnitude(totals, x), x)
        torch.testing.assert_close(found, torch.autograd.grad(magnitude(total, x), x))


def test_gradients_that_are_sparse() -> None:
    """As that of a table of which a few rows are read."""
    rows, x = torch.tensor([1, 1, 3]), torch.randn(4, 5, requires_grad=True)

    def read(run: Callable[..., Any]) -> torch.Tensor:
        return torch.autograd.grad(F.embedding(rows, run(x), sparse=True).square().sum(), x)[0]

    compiled = torch.compile(torch.sin, backend="polyfuse", options={"strict": True})
    for _ in range(3):
        torch.testing.assert_close(read(compiled), read(torch.sin).to_dense())


def test_gradients_of_several_at_once() -> None:
    """Tensors of a batch hide their memory, and a backward may overwrite what was saved for it."""
    compiled, args = ready(), inputs()
    several = torch.randn(3, 1, 5, dtype=torch.float64).expand(3, 4, 5), torch.randn(3, dtype=torch.float64)

    def at_once(run: Callable[..., Any]) -> Results:
        return torch.autograd.grad(run(*args)[:2], args, several, is_grads_batched=True)

    torch.testing.assert_close(at_once(compiled), at_once(function))
    agree(compiled, function, args)

    def rows(run: Callable[..., Any], **named: bool) -> Any:
        return torch.autograd.functional.jacobian(lambda x: run(x, args[1])[0], args[0].detach(), **named)

    torch.testing.assert_close(rows(compiled, vectorize=True), rows(function))


@pytest.mark.slow
def test_compiled_backwards_see_the_graph() -> None:
    def called(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return function(x, weight)

    compiled = ready(called, dynamic=True)
    counter = CompileCounterWithBackend("eager")
    for rows in (4, 7, 9, 11):
        args = inputs(rows)
        results = compiled(*args)
        total = results[0].square().sum() + results[1]
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend=counter, dynamic=True)):
            total.backward()
        torch.testing.assert_close([x.grad for x in args], list(gradients(function(*args), args)))
    assert counter.frame_count == 1


def test_compiled_backwards_call_hooks_of_values_within_the_graph() -> None:
    def called(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(x @ weight)
        hidden.register_hook(lambda gradient: gradient * 3)
        return hidden.square().sum()

    compiled: Any = torch.compile(called, backend="polyfuse", options={"strict": True})
    for _ in range(3):
        args, others = inputs(), inputs()
        with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
            compiled(*args).backward()
        called(*others).backward()
        torch.testing.assert_close([x.grad for x in args], [x.grad for x in others])


def test_sizes_that_vary_are_known_to_the_next_graph() -> None:
    def called(x: torch.Tensor, weight: torch.Tensor) -> Any:
        return function(x, weight)

    compiled = ready(called, dynamic=True)
    counter = CompileCounterWithBackend("eager")
    following = torch.compile(lambda x: x.sin().sum(), backend=counter)
    for rows in (4, 7, 9, 11):
        following(compiled(*inputs(rows))[0])
    assert counter.frame_count == 1


def test_what_is_compiled_is_shielded_from_dynamo() -> None:
    def compute(x: torch.Tensor) -> torch.Tensor:
        assert not torch.compiler.is_compiling()
        return x + 1

    shielded = dynamo.disable(compute, "it is tested")
    assert dynamo.disable(shielded, "again").__wrapped__ is compute  # type: ignore[attr-defined]
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(lambda x: shielded(x.sin()).cos(), backend=counter)
    x = torch.randn(3)
    torch.testing.assert_close(compiled(x), (x.sin() + 1).cos())
    assert counter.frame_count == 2  # before it and behind it
    with pytest.raises(torch._dynamo.exc.Unsupported, match="it is tested"):
        torch.compile(lambda x: shielded(x), backend=counter, fullgraph=True)(x)
    torch.testing.assert_close(torch.compiler.disable(shielded)(x), x + 1)
