"""The requests of a native host program, answered without Python: a function with a case for each."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.plugin.host import Constant, HostProgram, Operand, Request
from polyfuse_cpp.native_host.model_sizes import quoted

DTYPES: Mapping[str, str] = {
    name: f"PF_{name.upper()}"
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("float16", "bfloat16", "float32", "float64"),
    )
}
"""Types of elements as ``model/polyfuse_model.h`` has them."""


def dtype_code(dtype: torch.dtype | str) -> str:
    """A type of elements in C.

    Raises:
        UnsupportedError: tensors of models without Python have no such type.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise UnsupportedError(f"tensors of type {name} exist in Python alone")
    return DTYPES[name]


def requests_text(program: HostProgram, constants: Mapping[str, int], device: str = "") -> str:
    """The function that answers all requests of a program.

    Args:
        program: whose.
        constants: positions of weights by keys of the object table.
        device: the type of the device where tensors are; empty: the CPU, which can sort them.

    Raises:
        UnsupportedError: only Python can answer one; the message names it.
    """
    cases = []
    for number, request in enumerate(program.requests):
        body = _Case(request, constants, device).text()
        cases.append(f"    case {number}: {{ {body} }}\n")
    return (
        "namespace {\n"
        "inline long long said(int64_t stored) {\n"
        "  return stored > 0 ? stored & ~(INT64_C(1) << 62) : stored;\n}\n"
        "int answer(void* context, int32_t which, const pf_word* a, pf_word* b) {\n"
        "  pf_model* const model = (pf_model*)context;\n  switch (which) {\n"
        f"{''.join(cases)}"
        '  }\n  return fail("request %d is unknown", which);\n}\n}  // namespace\n'
    )


class _Case:
    """One request."""

    def __init__(self, request: Request, constants: Mapping[str, int], device: str) -> None:
        self._request = request
        self._device = device
        self._constants = constants
        self._arrays: list[str] = []

    def text(self) -> str:
        """Statements that return 0 or 1."""
        request = self._request
        printers: Mapping[str, Callable[..., str]] = {
            "empty_strided_cpu": self._empty,
            "empty_strided_device": self._empty,
            "reinterpret_tensor": self._view,
            "reinterpret_as": self._view,
            "result_view": self._view,
            "conform": self._conform,
            "assert_size_stride": self._check,
            "assert_layout": self._check,
            "size": self._size,
            "stride": self._size,
            "raise_for": self._raise,
        }
        operators: dict[str, Callable[..., str]] = {"aten.cat.out": self._joined}
        if not self._device:
            operators["aten.sort.default"] = operators["aten.sort.stable"] = self._sorted
            operators["aten.topk.default"] = self._greatest
        known = {"runtime": printers, "operator": operators, "out": operators}
        printer = known.get(request.kind, {}).get(request.name)
        if printer is None:
            raise UnsupportedError(_lacking(request))
        body = printer(*request.args, **dict(request.kwargs))
        return f"{''.join(self._arrays)}{body}"

    def _empty(self, size: Any, stride: Any, dtype: torch.dtype) -> str:
        return f"return give(make_tensor({dtype_code(dtype)}, {self._layout(size, stride)}), b);"

    def _view(
        self, base: Any, size: Any, stride: Any, offset: Any = 0, dtype: torch.dtype | None = None
    ) -> str:
        tensor = self._tensor(base)
        code = dtype_code(dtype) if dtype is not None else f"{tensor}->dtype"
        layout = self._layout(size, stride)
        return f"return give(view_tensor({tensor}, {layout}, {self._number(offset)}, {code}), b);"

    def _conform(self, tensor: Any, size: Any, stride: Any, alignment: Any, dtype: Any) -> str:
        code = dtype_code(dtype) if dtype is not None else "0"
        layout = self._layout(size, stride)
        return f"return conform({self._tensor(tensor)}, {layout}, {self._number(alignment)}, {code}, b);"

    def _check(self, tensor: Any, size: Any, stride: Any) -> str:
        layout = self._layout(size, stride)
        return f"return check_layout({self._tensor(tensor)}, {layout}, {quoted(self._request.subject)});"

    def _size(self, tensor: Any, dim: Any) -> str:
        member = "sizes" if self._request.name == "size" else "strides"
        return f"b[0].i = {self._tensor(tensor)}->{member}[{self._number(dim)}]; return 0;"

    def _raise(self, rows: Any, *numbers: Any) -> str:
        """An error with the words of the exception that Python programs raise."""
        values, sizes = numbers[: len(rows)], numbers[len(rows) :]
        cases = []
        for (kind, text), value, size in zip(rows, values, sizes, strict=True):
            found = self._number(value)
            given = {"{index}": f"said({found})", "{size}": f"(long long){self._number(size)}"}
            parts = re.split(r"({index}|{size})", text)
            words = "".join("%lld" if part in given else part.replace("%", "%%") for part in parts)
            operands = "".join(f", {given[part]}" for part in parts if part in given)
            cases.append(f"if ({found}) return fail({quoted(f'{kind}: {words}')}{operands});")
        return " ".join((*cases, "return 1;"))

    def _joined(self, parts: Any, dim: Any = 0, *, out: Any) -> str:
        tensors = ", ".join(map(self._tensor, parts))
        self._arrays.append(f"const pf_ref parts[] = {{{tensors}}}; ")
        return f"return join({len(parts)}, parts, {self._number(dim)}, {self._tensor(out)});"

    def _sorted(self, tensor: Any, dim: Any = -1, descending: Any = False, stable: Any = None) -> str:
        return self._ordered(tensor, dim, descending, -1)

    def _greatest(self, tensor: Any, k: Any, dim: Any = -1, largest: Any = True, sorted: Any = True) -> str:
        return self._ordered(tensor, dim, largest, k)

    def _ordered(self, tensor: Any, dim: Any, descending: Any, count: Any) -> str:
        """Results that nobody wants have no words."""
        wanted = self._request.results
        words = ["b" if wanted[0] != "-" else "nullptr", "nullptr"]
        if wanted[1] != "-":
            words[1] = "b + 1" if wanted[0] != "-" else "b"
        numbers = ", ".join(map(self._number, (dim, descending, count)))
        return f"return sorted({self._tensor(tensor)}, {numbers}, {', '.join(words)});"

    # Arguments.

    def _layout(self, size: Any, stride: Any) -> str:
        """Rank, sizes and strides."""
        for name, values in (("sizes", size), ("strides", stride)):
            numbers = ", ".join((*map(self._number, values), "0"))
            self._arrays.append(f"const int64_t {name}[] = {{{numbers}}}; ")
        return f"{len(size)}, sizes, strides"

    def _tensor(self, value: Any) -> str:
        if isinstance(value, Constant):
            return f"model->weights[{self._constants[value.key]}]"
        if isinstance(value, Operand) and self._request.operands[value.position] == "r":
            return f"a[{value.position}].ref"
        raise UnsupportedError(_lacking(self._request))

    def _number(self, value: Any) -> str:
        if isinstance(value, Operand) and self._request.operands[value.position] == "i":
            return f"a[{value.position}].i"
        if isinstance(value, int):
            return f"INT64_C({int(value)})"
        raise UnsupportedError(_lacking(self._request))


def _lacking(request: Request) -> str:
    """Why a request cannot be answered."""
    what = {
        "operator": "the operator {} is computed by torch",
        "out": "the operator {} is computed by torch",
        "kernel": "the kernel {} has no C symbol",
        "object": "{} is an object of Python",
    }.get(request.kind, "{} is done by Python")
    where = f" ({request.origin})" if request.origin else ""
    return what.format(request.name) + where
