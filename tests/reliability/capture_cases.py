"""Frames whose meaning changes between two processes, each as it is and changed. `test_capture_misses.py`
runs them in processes that find `capture_near` and what it imports. A case returns a function and its
arguments, and leaves what it changes to `patch` and `stack`.

Most choose between the sine and the cosine, so that few kernels are built for all of them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from types import MethodType
from typing import Any, ClassVar

import capture_near
import capture_parts
import pytest
import torch
from torch import nn

from new_process import as_in_a_new_process
from polyfuse.cache.graphs import graph_counts

Case = Callable[[bool, pytest.MonkeyPatch, contextlib.ExitStack], tuple[Callable[..., Any], tuple[Any, ...]]]

CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def x(**options: Any) -> torch.Tensor:
    return torch.linspace(-1, 1, 8, **options)


def either(other: bool, value: torch.Tensor) -> torch.Tensor:
    return value.cos() if other else value.sin()


def sine(value: torch.Tensor) -> torch.Tensor:
    return value.sin()


def cosine(value: torch.Tensor) -> torch.Tensor:
    return value.cos()


OTHER = False
CHOSEN = sine
CHOICES = {"wave": sine}


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Config:
    other: bool = False
    rate: float = 0.5


class Opaque:
    """A constant of which Python prints nothing."""

    def __init__(self, other: bool) -> None:
        self.other = other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and other.other == self.other

    def __hash__(self) -> int:
        return hash(self.other)

    def __repr__(self) -> str:
        return "Opaque()"


torch.utils._pytree.register_constant(Opaque)


class Wave(nn.Module):
    other = False
    table: ClassVar[dict[str, bool]] = {"other": False}

    def __init__(self) -> None:
        super().__init__()
        self.chosen = False
        self.function = torch.sin

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return either(self.chosen, value)


class ByClass(Wave):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return either(self.other, value)


class ByTable(Wave):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return either(self.table["other"], value)


class ByFunction(Wave):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.function(value)


class ByProperty(Wave):
    @property
    def asked(self) -> bool:
        return False

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return either(self.asked, value)


class Cosine(Wave):
    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value.cos()


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return self.inner(value)


class Waves:
    """No module: a plain object with a method."""

    def __init__(self, other: bool) -> None:
        self.other = other

    def wave(self, value: torch.Tensor) -> torch.Tensor:
        return either(self.other, value)

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return either(self.other, value)

    @staticmethod
    def still(value: torch.Tensor) -> torch.Tensor:
        return value.sin()

    @classmethod
    def of_class(cls, value: torch.Tensor) -> torch.Tensor:
        return value.sin()


# sources that were edited


@case
def a_called_function_of_another_file(changed, patch, stack):
    return lambda v: capture_near.called(v), (x(),)


@case
def a_function_two_files_away(changed, patch, stack):
    return lambda v: capture_near.calls_far(v), (x(),)


@case
def a_method_two_files_away(changed, patch, stack):
    return Outer(capture_near.FarModule()), (x(),)


@case
def a_new_override_in_a_class_between(changed, patch, stack):
    return Outer(capture_parts.Child()), (x(),)


@case
def a_constant_of_another_file(changed, patch, stack):
    return lambda v: either(capture_near.OTHER, v), (x(),)


@case
def a_differentiable_function_of_another_file(changed, patch, stack):
    return lambda v: capture_near.Function.apply(v), (x(),)


@case
def a_default_of_a_function_of_another_file(changed, patch, stack):
    return lambda v: capture_near.with_default(v), (x(),)


# globals, closures and defaults


@case
def a_global_variable(changed, patch, stack):
    patch.setitem(globals(), "OTHER", changed)
    return lambda v: either(OTHER, v), (x(),)


@case
def a_global_function(changed, patch, stack):
    patch.setitem(globals(), "CHOSEN", cosine if changed else sine)
    return lambda v: CHOSEN(v), (x(),)


@case
def a_function_in_a_table(changed, patch, stack):
    patch.setitem(CHOICES, "wave", cosine if changed else sine)
    return lambda v: CHOICES["wave"](v), (x(),)


@case
def a_function_of_a_module(changed, patch, stack):
    if changed:
        patch.setattr(capture_near, "replaced", cosine)
    return lambda v: capture_near.replaced(v), (x(),)


@case
def a_value_in_a_closure(changed, patch, stack):
    return lambda v: either(changed, v), (x(),)


@case
def a_function_in_a_closure(changed, patch, stack):
    inner = cosine if changed else sine
    return lambda v: inner(v), (x(),)


@case
def a_value_in_a_closure_of_a_closure(changed, patch, stack):
    def inner(v):
        return either(changed, v)

    return lambda v: inner(v), (x(),)


@case
def a_decorated_function(changed, patch, stack):
    def decorated(function):
        @functools.wraps(function)
        def wrapper(v):
            return function(v)

        return wrapper

    inner = decorated(cosine if changed else sine)
    return lambda v: inner(v), (x(),)


@case
def a_default_argument(changed, patch, stack):
    def function(v, other=changed):
        return either(other, v)

    return function, (x(),)


@case
def a_default_of_a_called_function(changed, patch, stack):
    def inner(v, other=changed):
        return either(other, v)

    return lambda v: inner(v), (x(),)


@case
def a_keyword_default_of_a_called_function(changed, patch, stack):
    def inner(v, *, other=changed):
        return either(other, v)

    return lambda v: inner(v), (x(),)


@case
def a_partial_function(changed, patch, stack):
    inner = functools.partial(either, changed)
    return lambda v: inner(v), (x(),)


@case
def a_bound_method(changed, patch, stack):
    inner = Waves(changed).wave
    return lambda v: inner(v), (x(),)


@case
def a_callable_object(changed, patch, stack):
    inner = Waves(changed)
    return lambda v: inner(v), (x(),)


@case
def a_variable_of_the_environment(changed, patch, stack):
    patch.setenv("CAPTURE_CASE", "cosine" if changed else "sine")
    return lambda v: either(os.environ["CAPTURE_CASE"] == "cosine", v), (x(),)


@case
def a_variable_of_the_environment_by_get(changed, patch, stack):
    if changed:
        patch.setenv("CAPTURE_CASE_SET", "1")
    return lambda v: either(os.environ.get("CAPTURE_CASE_SET") is not None, v), (x(),)


# modules


@case
def the_training_flag(changed, patch, stack):
    module = nn.Sequential(nn.BatchNorm1d(8, affine=False))
    module.train(not changed)
    return module, (torch.linspace(-1, 1, 32).view(4, 8),)


@case
def the_training_flag_of_a_part(changed, patch, stack):
    module = nn.Sequential(nn.BatchNorm1d(8, affine=False))
    module[0].train(not changed)
    return module, (torch.linspace(-1, 1, 32).view(4, 8),)


@case
def the_rate_of_dropout(changed, patch, stack):
    return nn.Sequential(nn.Dropout(1.0 if changed else 0.0)), (x(),)


@case
def an_attribute(changed, patch, stack):
    module = Outer(Wave())
    module.inner.chosen = changed
    return module, (x(),)


@case
def an_attribute_of_type_int(changed, patch, stack):
    module = Outer(Wave())
    module.inner.chosen = 1 if changed else 0
    return module, (x(),)


@case
def an_attribute_that_is_a_function(changed, patch, stack):
    module = Outer(ByFunction())
    module.inner.function = torch.cos if changed else torch.sin
    return module, (x(),)


@case
def an_attribute_of_a_class(changed, patch, stack):
    patch.setattr(ByClass, "other", changed)
    return Outer(ByClass()), (x(),)


@case
def a_table_of_a_class(changed, patch, stack):
    patch.setitem(ByTable.table, "other", changed)
    return Outer(ByTable()), (x(),)


@case
def an_attribute_of_an_instance_over_that_of_its_class(changed, patch, stack):
    module = Outer(ByClass())
    if changed:
        module.inner.other = True
    return module, (x(),)


@case
def a_replaced_part(changed, patch, stack):
    return Outer(Cosine() if changed else Wave()), (x(),)


@case
def a_replaced_part_in_a_sequence(changed, patch, stack):
    return nn.Sequential(nn.Identity(), Cosine() if changed else Wave()), (x(),)


@case
def a_part_more(changed, patch, stack):
    return nn.Sequential(*(Wave() for _ in range(2 if changed else 1))), (x(),)


@case
def the_order_of_parts(changed, patch, stack):
    parts = {"a": Wave(), "b": Cosine()}
    order = ("b", "a") if changed else ("a", "b")
    return nn.Sequential(nn.ModuleDict({k: parts[k] for k in order})["a"], *(parts[k] for k in order)), (x(),)


@case
def a_buffer_of_another_type(changed, patch, stack):
    module = nn.Module()
    module.register_buffer("scale", torch.ones(8, dtype=torch.float64 if changed else torch.float32))
    return Held(module), (x(),)


class Held(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value * self.inner.scale


@case
def a_parameter_that_needs_no_gradient(changed, patch, stack):
    module = nn.Module()
    module.scale = nn.Parameter(torch.ones(8), requires_grad=not changed)
    return Held(module), (x(),)


@case
def a_forward_hook(changed, patch, stack):
    module = Outer(Wave())
    if changed:
        module.inner.register_forward_hook(lambda m, args, result: args[0].cos())
    return module, (x(),)


@case
def a_forward_hook_of_the_outermost(changed, patch, stack):
    module = Outer(Wave())
    if changed:
        module.register_forward_hook(lambda m, args, result: args[0].cos())
    return module, (x(),)


@case
def a_hook_before_forward(changed, patch, stack):
    module = Outer(Wave())
    if changed:
        module.inner.register_forward_pre_hook(lambda m, args: (args[0].cos(),))
    return module, (x(),)


@case
def another_hook(changed, patch, stack):
    module = Outer(Wave())
    function = cosine if changed else sine
    patch.setattr(torch.utils.hooks.RemovableHandle, "next_id", 100)  # part of what Dynamo guards on
    module.inner.register_forward_hook(lambda m, args, result: function(args[0]))
    return module, (x(),)


@case
def a_hook_of_all_modules(changed, patch, stack):
    if changed:
        hook = nn.modules.module.register_module_forward_hook(lambda m, args, result: args[0].cos())
        stack.callback(hook.remove)
    return Outer(Wave()), (x(),)


class Turned:
    """Its method is a hook."""

    def __init__(self, other: bool = False) -> None:
        self.other = other

    def hook(self, module: nn.Module, args: tuple[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
        return either(self.other, args[0])


class TurnedOtherwise(Turned):
    def hook(self, module: nn.Module, args: tuple[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
        return args[0].cos()


@case
def the_object_of_a_hook(changed, patch, stack):
    module = Outer(Wave())
    patch.setattr(torch.utils.hooks.RemovableHandle, "next_id", 200)
    module.inner.register_forward_hook(Turned(changed).hook)
    return module, (x(),)


@case
def the_class_of_the_object_of_a_hook(changed, patch, stack):
    module = Outer(Wave())
    patch.setattr(torch.utils.hooks.RemovableHandle, "next_id", 300)
    module.inner.register_forward_hook((TurnedOtherwise if changed else Turned)().hook)
    return module, (x(),)


def _made(**held: Any) -> nn.Module:
    """A module of a class that a program makes, which nothing can import."""
    module = Outer(Wave())
    module.inner.__class__ = type("Made", (Wave,), held)
    return module


@case
def a_method_of_a_made_class(changed, patch, stack):
    return _made(forward=(lambda self, v: v.cos()) if changed else (lambda self, v: v.sin())), (x(),)


@case
def a_value_of_a_made_class(changed, patch, stack):
    return _made(other=changed, forward=lambda self, v: either(self.other, v)), (x(),)


@case
def a_base_of_a_made_class(changed, patch, stack):
    module = Outer(Wave())
    module.inner.__class__ = type("Made", (Cosine,) if changed else (Wave,), {})
    return module, (x(),)


@torch._dynamo.disable
def untraced(value: torch.Tensor, other: bool) -> torch.Tensor:
    return either(other, value)


@case
def what_is_given_to_a_function_that_is_not_traced(changed, patch, stack):
    """There is no graph, and nothing to go on with."""
    return (lambda value, other: untraced(value, not other)), (x(), changed)


@case
def a_parametrization(changed, patch, stack):
    module = nn.Module()
    module.scale = nn.Parameter(torch.ones(8))
    if changed:
        nn.utils.parametrize.register_parametrization(module, "scale", Cosine())
    return Held(module), (x(),)


@case
def a_forward_of_an_instance(changed, patch, stack):
    module = Outer(Wave())
    if changed:
        module.inner.forward = MethodType(lambda self, value: value.cos(), module.inner)
    return module, (x(),)


class Scan(nn.Module):
    """A selective scan, step by step, that asks a cached function and passes through trees: guards compare a
    set of types and functions, of which Python prints addresses in an order of one process."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.linspace(0.1, 0.9, 8), requires_grad=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        steps = torch.utils._pytree.tree_map(lambda part: part * self.rates, {"steps": list(value.unbind(0))})
        state, states = torch.zeros_like(self.rates), []
        for step in steps["steps"]:
            state = state * self.rates + either(is_other(), step)
            states.append(state)
        return torch.stack(states)


@functools.lru_cache
def is_other() -> bool:
    return OTHER


@case
def a_selective_scan(changed, patch, stack):
    patch.setitem(globals(), "OTHER", changed)
    is_other.cache_clear()
    return Scan(), (torch.linspace(-1, 1, 32).view(4, 8),)


# methods that were replaced


@case
def a_method_of_a_class(changed, patch, stack):
    if changed:
        patch.setattr(Wave, "forward", lambda self, value: value.cos())
    return Outer(Wave()), (x(),)


@case
def a_call_of_a_class(changed, patch, stack):
    if changed:
        patch.setattr(Wave, "__call__", lambda self, value: value.cos())
    return Outer(Wave()), (x(),)


@case
def a_property_of_a_class(changed, patch, stack):
    if changed:
        patch.setattr(ByProperty, "asked", property(lambda self: True))
    return Outer(ByProperty()), (x(),)


@case
def a_method_of_a_base(changed, patch, stack):
    if changed:
        patch.setattr(capture_parts.Middle, "forward", lambda self, value: value.exp().cos(), raising=False)
    return Outer(capture_parts.Unedited()), (x(),)


@case
def a_method_of_torch(changed, patch, stack):
    if changed:
        patch.setattr(nn.ReLU, "forward", lambda self, value: value.cos())
    return nn.Sequential(nn.ReLU()), (x(),)


@case
def a_call_of_torch(changed, patch, stack):
    if changed:
        patch.setattr(nn.Sigmoid, "__call__", lambda self, value: value.cos())
    return nn.Sequential(nn.Sigmoid()), (x(),)


@case
def a_function_of_torch(changed, patch, stack):
    if changed:
        patch.setattr(torch, "sin", torch.cos)
    return lambda v: torch.sin(v), (x(),)


@case
def a_function_of_torch_in_python(changed, patch, stack):
    if changed:
        patch.setattr(nn.functional, "relu", cosine)
    return lambda v: nn.functional.relu(v), (x(),)


@case
def a_function_that_torch_calls(changed, patch, stack):
    if changed:
        patch.setattr(nn.functional, "relu", lambda value, inplace=False: value.cos())
    return nn.Sequential(nn.ReLU()), (x(),)


@case
def a_method_of_tensors(changed, patch, stack):
    if changed:
        patch.setattr(torch.Tensor, "sin", lambda self: self.cos())
    return lambda v: v.sin(), (x(),)


@case
def a_static_method(changed, patch, stack):
    if changed:
        patch.setattr(Waves, "still", staticmethod(cosine))
    return lambda v: Waves.still(v), (x(),)


@case
def a_class_method(changed, patch, stack):
    if changed:
        patch.setattr(Waves, "of_class", classmethod(lambda cls, v: v.cos()))
    return lambda v: Waves.of_class(v), (x(),)


@case
def a_method_of_an_object(changed, patch, stack):
    if changed:
        patch.setattr(Waves, "wave", lambda self, value: value.cos())
    waves = Waves(False)
    return lambda v: waves.wave(v), (x(),)


@case
def a_method_of_an_argument(changed, patch, stack):
    if changed:
        patch.setattr(Waves, "wave", lambda self, value: value.cos())
    return lambda v, waves: waves.wave(v), (x(), Waves(False))


@case
def a_function_of_python(changed, patch, stack):
    if changed:
        patch.setattr(math, "sqrt", lambda v: 3.0)
    return lambda v: v * math.sqrt(4.0), (x(),)


# torch's switches


@case
def the_grad_mode(changed, patch, stack):
    stack.enter_context(torch.set_grad_enabled(not changed))
    return lambda v: either(torch.is_grad_enabled(), v), (x(),)


@case
def the_inference_mode(changed, patch, stack):
    stack.enter_context(torch.inference_mode(changed))
    return lambda v: either(torch.is_inference_mode_enabled(), v), (x(),)


@case
def autocast(changed, patch, stack):
    stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16, enabled=changed))
    return lambda v: v @ v.T, (torch.eye(8),)


@case
def the_default_dtype(changed, patch, stack):
    stack.callback(torch.set_default_dtype, torch.get_default_dtype())
    torch.set_default_dtype(torch.float64 if changed else torch.float32)
    return lambda v: v + torch.full((8,), 0.5), (x(dtype=torch.float32),)


@case
def the_default_device(changed, patch, stack):
    stack.callback(torch.set_default_device, None)
    if changed:
        torch.set_default_device("meta")
    return lambda v: either(torch.get_default_device().type == "meta", v), (x(device="cpu"),)


@case
def deterministic_algorithms(changed, patch, stack):
    stack.callback(torch.use_deterministic_algorithms, False)
    torch.use_deterministic_algorithms(changed)
    return lambda v: either(torch.are_deterministic_algorithms_enabled(), v), (x(),)


@case
def the_precision_of_matmuls(changed, patch, stack):
    stack.callback(torch.set_float32_matmul_precision, "highest")
    torch.set_float32_matmul_precision("medium" if changed else "highest")
    return lambda v: v @ v, (torch.eye(8),)


@case
def the_number_of_threads(changed, patch, stack):
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(2 if changed else 1)
    return lambda v: either(torch.get_num_threads() == 2, v), (x(),)


@case
def a_setting_of_dynamo(changed, patch, stack):
    stack.enter_context(torch._dynamo.config.patch(specialize_float=changed))
    return lambda v, scale: v * scale, (x(), 0.25)


# arguments


@case
def the_dtype(changed, patch, stack):
    return sine, (x(dtype=torch.float64 if changed else torch.float32),)


@case
def the_strides(changed, patch, stack):
    value = torch.linspace(0, 1, 64).view(8, 8)
    return lambda v: v.sin().contiguous(), (value.T if changed else value,)


@case
def the_size(changed, patch, stack):
    return lambda v: either(v.shape[0] == 9, v), (torch.linspace(0, 1, 9 if changed else 8),)


@case
def the_number_of_dimensions(changed, patch, stack):
    return lambda v: either(v.dim() == 2, v), (x().view(1, 8) if changed else x(),)


@case
def whether_a_gradient_is_needed(changed, patch, stack):
    return lambda v: either(v.requires_grad, v), (x(requires_grad=changed),)


@case
def whether_it_is_a_parameter(changed, patch, stack):
    value = nn.Parameter(x(), requires_grad=False) if changed else x()
    return lambda v: either(isinstance(v, nn.Parameter), v), (value,)


@case
def two_that_are_one(changed, patch, stack):
    value = x()
    return lambda a, b: either(a is b, a), (value, value if changed else x())


@case
def a_conjugated_tensor(changed, patch, stack):
    value = x().to(torch.complex64) * (1 + 2j)
    return lambda v: either(v.is_conj(), v.real), (value.conj() if changed else value,)


@case
def a_mark_of_a_dynamic_size(changed, patch, stack):
    value = x()
    if changed:
        torch._dynamo.mark_dynamic(value, 0)
    return lambda v: v.sin(), (value,)


@case
def a_mark_of_an_unbacked_size(changed, patch, stack):
    value = x()
    if changed:
        torch._dynamo.decorators.mark_unbacked(value, 0)
    return sine, (value,)


@case
def a_number(changed, patch, stack):
    return lambda v, n: either(n == 3, v), (x(), 3 if changed else 2)


@case
def a_number_of_another_type(changed, patch, stack):
    return lambda v, n: either(isinstance(n, bool), v), (x(), True if changed else 1)


@case
def a_float_in_place_of_an_integer(changed, patch, stack):
    return lambda v, n: either(isinstance(n, float), v), (x(), 2.0 if changed else 2)


@case
def a_text(changed, patch, stack):
    return lambda v, name: either(name == "cosine", v), (x(), "cosine" if changed else "sine")


@case
def none(changed, patch, stack):
    return lambda v, other: either(other is None, v), (x(), None if changed else 0)


@case
def a_list(changed, patch, stack):
    return lambda v, many: either(len(many) == 2, v), (x(), [1, 2] if changed else [1])


@case
def a_table(changed, patch, stack):
    return lambda v, table: either(table["other"], v), (x(), {"other": changed})


@case
def the_order_of_a_table(changed, patch, stack):
    table = {"b": 1, "a": 2} if changed else {"a": 2, "b": 1}
    return lambda v, given: either(next(iter(given)) == "b", v), (x(), table)


@case
def an_enumeration(changed, patch, stack):
    return lambda v, color: either(color is Color.BLUE, v), (x(), Color.BLUE if changed else Color.RED)


@case
def a_record(changed, patch, stack):
    return lambda v, config: either(config.other, v), (x(), Config(changed))


@case
def a_global_set(changed, patch, stack):
    patch.setitem(globals(), "NAMES", frozenset({"one", "two", "cosine" if changed else "sine"}))
    return lambda v: either("cosine" in NAMES, v), (x(),)  # noqa: F821


@case
def a_global_set_of_functions(changed, patch, stack):
    patch.setitem(globals(), "FUNCTIONS", frozenset({either, cosine if changed else sine}))
    return lambda v: either(cosine in FUNCTIONS, v), (x(),)  # noqa: F821


@case
def a_constant_of_which_nothing_is_printed(changed, patch, stack):
    return lambda v, constant: either(constant.other, v), (x(), Opaque(changed))


@case
def a_type(changed, patch, stack):
    return lambda v, kind: either(kind is Cosine, v), (x(), Cosine if changed else Wave)


@case
def a_dtype(changed, patch, stack):
    return lambda v, kind: v.to(kind), (x(), torch.float64 if changed else torch.float16)


def outcomes(changed: bool, chosen: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Which cases are found, one after another, each as in a process of its own.

    Args:
        chosen: the only ones; all if there are none.
    """
    for name in chosen or CASES:
        as_in_a_new_process()
        row: dict[str, Any] = {"name": name, "error": ""}
        try:
            with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
                function, args = CASES[name](changed, patch, stack)
                expected = function(*args)
                found = torch.compile(function, backend="polyfuse")(*args)
                row["captured"] = graph_counts().captured
                torch.testing.assert_close(found, expected)
                if found.requires_grad:  # a frame is stored with its backward
                    found.sum().backward()
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
        yield row


if __name__ == "__main__":
    for row in outcomes(sys.argv[1] == "changed", sys.argv[2:]):
        print(json.dumps(row), flush=True)
