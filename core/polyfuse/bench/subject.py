"""What is measured, as the command line names it: `program.py`, `module:function` or `hf:configuration`."""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from polyfuse.base.errors import PolyfuseError
from polyfuse.bench.hugging_face import hugging_face_model
from polyfuse.torch_compat.tracing.pytree import map_tensors


@dataclass(frozen=True)
class Subject:
    """Something to call.

    Attributes:
        function: a function or module, not compiled.
        args, kwargs: what it is called with.
        about: what it is, for people.
        grad: whether gradients are recorded during the call.
        left_out: what else could have been measured, and why it was not.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    about: str
    left_out: tuple[str, ...] = ()
    grad: bool = False


def load_subject(
    name: str, arguments: Sequence[str], sizes: Mapping[str, int], device: str, training: bool
) -> Subject:
    """Find and make what a name stands for.

    Args:
        name: `program.py`, `module:function` or `hf:configuration`.
        arguments: of a program.
        sizes: of this point of a sweep: arguments `--NAME VALUE` of a program, keyword arguments of a
            function, and `batch` and `sequence` of a `transformers` model.
        device: where models of `transformers` and results of `module:function` are put; empty: an accelerator
            if there is one, for the first of these alone.
        training: whether gradients are needed.

    Raises:
        PolyfuseError: there is no such thing, or it does not say what it is called with.
    """
    if name.startswith("hf:"):
        model, inputs, about = hugging_face_model(name.removeprefix("hf:"), sizes, device, training)
        return Subject(model, (), inputs, about, grad=training)
    if name.endswith(".py"):
        return _program(name, arguments, sizes, training)
    module, colon, attribute = name.partition(":")
    if not colon:
        raise PolyfuseError(
            f"{name!r} is no subject", "name a program.py, a module:function, or hf:configuration"
        )
    return replace(_function(module, attribute, sizes, device), grad=training)


def _function(module: str, attribute: str, sizes: Mapping[str, int], device: str) -> Subject:
    sys.path.insert(0, "")
    try:
        namespace = import_module(module)
        found: Any = namespace
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise PolyfuseError(f"{module}:{attribute} cannot be loaded ({error})", "correct the name") from error
    if not isinstance(found, torch.nn.Module) and callable(found) and not _required(found):
        return _made(found, sizes, f"{module}:{attribute}", device)
    inputs = getattr(found, "example_inputs", getattr(namespace, "example_inputs", None))
    if inputs is None or not callable(found):
        raise PolyfuseError(
            f"{module}:{attribute} needs arguments, and nothing says which",
            "name a function without required arguments that returns (function, arguments), or set "
            "`example_inputs` in the module: a tuple, or a function that returns one",
        )
    args, kwargs = _arguments(inputs(**sizes) if callable(inputs) else inputs)
    return _on_device(Subject(found, args, kwargs, f"{module}:{attribute}"), device)


def _made(maker: Callable[..., Any], sizes: Mapping[str, int], about: str, device: str) -> Subject:
    """What a function that needs no arguments returns: `(function, args)` or `(function, args, kwargs)`."""
    made = maker(**sizes)
    if not isinstance(made, (tuple, list)) or len(made) not in (2, 3) or not callable(made[0]):
        raise PolyfuseError(
            f"{about} returned {type(made).__name__}", "return (function, args) or (function, args, kwargs)"
        )
    args, kwargs = _arguments(made[1])
    if len(made) == 3:
        kwargs = {**kwargs, **made[2]}
    return _on_device(Subject(made[0], args, kwargs, about), device)


def _on_device(subject: Subject, device: str) -> Subject:
    if not device:
        return subject
    if isinstance(subject.function, torch.nn.Module):
        subject.function.to(device)
    moved = map_tensors(lambda x: x.to(device), (subject.args, dict(subject.kwargs)))
    return replace(subject, args=moved[0], kwargs=moved[1])


def _required(function: Callable[..., Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    named = (p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD))
    return [p.name for p in named if p.default is p.empty]


def _arguments(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given), {}) if isinstance(given, (tuple, list)) else ((given,), {})


class _ProgramStopped(BaseException):
    """Ends a program once its first compiled function was called; no program catches it by accident."""


def _program(name: str, arguments: Sequence[str], sizes: Mapping[str, int], training: bool) -> Subject:
    """The first function that a program compiles and calls, with the arguments of that call. The program ends
    there. If it compiles nothing, its globals `model` and `inputs` are used.
    """
    if not Path(name).is_file():
        raise PolyfuseError(f"there is no file {name}", "name a Python program")
    found: list[Subject] = []
    before = sys.argv, list(sys.path), torch.compile
    swept = [word for key, value in sizes.items() for word in (f"--{key}", str(value))]
    sys.argv = [name, *arguments, *swept]
    sys.path.insert(0, str(Path(name).resolve().parent))
    setattr(torch, "compile", _catcher(found, name))  # noqa: B010 - mypy knows its overloads
    namespace: dict[str, Any] = {}
    try:
        namespace = runpy.run_path(name, run_name="__main__")
    except _ProgramStopped:
        return found[0]
    except SystemExit as left:
        if left.code not in (0, None):
            raise PolyfuseError(f"{name} ended with status {left.code} before it compiled anything") from left
    finally:
        sys.argv, sys.path[:] = before[0], before[1]
        setattr(torch, "compile", before[2])  # noqa: B010
    inputs = next((namespace[key] for key in ("inputs", "example_inputs") if key in namespace), None)
    if callable(namespace.get("model")) and inputs is not None:
        args, kwargs = _arguments(inputs)
        return Subject(namespace["model"], args, kwargs, f"model of {name}", grad=training)
    raise PolyfuseError(
        f"{name} calls no function that torch.compile made, and has no globals `model` and `inputs`",
        "compile what is to be measured, or name a module:function",
    )


def _catcher(found: list[Subject], program: str) -> Callable[..., Any]:
    """What stands for `torch.compile` while a program runs."""
    names: list[str] = []

    def compile_(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda function: compile_(function, **options)
        name = getattr(model, "__name__", type(model).__name__)
        names.append(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            others = [f"{other} of {program}: one function is measured" for other in names if other != name]
            grad = torch.is_grad_enabled()
            found.append(Subject(model, args, kwargs, f"{name} of {program}", tuple(others), grad))
            raise _ProgramStopped

        if not isinstance(model, torch.nn.Module):
            return call
        return _Catching(model, call)

    return compile_


class _Catching(torch.nn.Module):
    """A module whose call is caught; all else is as in the module itself."""

    def __init__(self, inner: torch.nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.__dict__["_inner"], self.__dict__["_call"] = inner, call

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_call"](*args, **kwargs)
