"""Series of launches as words that the native launcher carries out; `launcher.h` has them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any

from polyfuse.runtime.launching import SeriesPlan
from polyfuse_triton.launch.expressions import postfix

TYPES = {"bfloat16": 14, "float16": 2}
"""Types of matmuls, as cuBLASLt numbers them."""

EPILOGUES = {"": 0, "relu": 2, "gelu": 32}
_BIAS, _NO_EPILOGUE = 4, 1
_Operand = tuple[int, int, bool, int, int]
"""An operand of a matmul, as `polyfuse.program.steps.SeriesRow` has it."""


class _Step(IntEnum):
    """In the order of the launcher's own list."""

    TAKE_MEMORY = 0
    MAKE_TENSOR = 1
    MAKE_VIEW = 2
    FORGET = 3
    LAUNCH = 4
    MULTIPLY = 5


class _Matrix(ctypes.Structure):
    _fields_ = (("columns_first", ctypes.c_int64), ("step", ctypes.c_int64), ("batch", ctypes.c_int64))


class _Matmul(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("epilogue", ctypes.c_int),
        ("has_bias", ctypes.c_int),
        ("batches", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("depth", ctypes.c_int64),
        ("out", _Matrix),
        ("left", _Matrix),
        ("right", _Matrix),
    )


class SeriesTable(ctypes.Structure):
    """What the launcher is given of a series."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("wanted", ctypes.c_char_p),
        ("code", ctypes.POINTER(ctypes.c_int64)),
        ("returns", ctypes.POINTER(ctypes.c_int)),
        ("kernels", ctypes.POINTER(ctypes.py_object)),
        ("constants", ctypes.POINTER(ctypes.py_object)),
        ("length", ctypes.c_int),
        ("inputs", ctypes.c_int),
        ("symbols", ctypes.c_int),
        ("buffers", ctypes.c_int),
        ("results", ctypes.c_int),
        ("launches", ctypes.c_int),
        ("kernel_count", ctypes.c_int),
        ("constant_count", ctypes.c_int),
        ("allocate", ctypes.py_object),
        ("view", ctypes.py_object),
        ("each", ctypes.py_object),
        ("explain", ctypes.py_object),
        ("matmuls", ctypes.POINTER(_Matmul)),
        ("matmul_count", ctypes.c_int),
    )


def join_series(
    join: Callable[[Any], Any], plan: SeriesPlan, letters: Mapping[str, str]
) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A function that carries out a series.

    Args:
        join: the launcher's own.
        letters: how each kernel's arguments are passed, by its name.

    Raises:
        KernelLoadError: a number has no form that the launcher knows.
    """
    words = _Words(plan, letters)
    kernels = [plan.kernels[name].__self__ for name in words.kernels]  # type: ignore[attr-defined]
    made: Callable[[list[Any]], tuple[Any, ...]] = join(
        ctypes.byref(
            SeriesTable(
                plan.name.encode(),
                "".join(words.wanted(number) for number in range(plan.inputs)).encode(),
                (ctypes.c_int64 * len(words.code))(*words.code),
                (ctypes.c_int * len(plan.returns))(*plan.returns),
                (ctypes.py_object * len(kernels))(*kernels),
                (ctypes.py_object * len(words.constants))(*words.constants),
                len(words.code),
                plan.inputs,
                len(plan.symbols),
                plan.slots,
                len(plan.returns),
                words.launches,
                len(kernels),
                len(words.constants),
                plan.allocate,
                plan.view,
                plan.each,
                plan.explain,
                (_Matmul * len(words.matmuls))(*words.matmuls),
                len(words.matmuls),
            )
        )
    )
    return made


class _Words:
    """The state of writing one series."""

    def __init__(self, plan: SeriesPlan, letters: Mapping[str, str]) -> None:
        self.symbols = plan.symbols
        self.code: list[int] = []
        self.kernels: list[str] = []
        self.constants: list[Any] = []
        self.addressed: set[int] = set()
        self.multiplied: set[int] = set()
        self.matmuls: list[_Matmul] = []
        self.launches = 0
        for kind, *row in plan.rows:
            if kind == "launch":
                self._launch(row[0], row[1], letters[row[0]])
            elif kind == "memory":
                self.code += [_Step.TAKE_MEMORY, row[0], *self._number(row[1])]
            elif kind == "tensor":
                self.code += [_Step.MAKE_TENSOR, row[0], *self._arguments(*row[1:])]
            elif kind == "view":
                self._view(row[0], row[1], 0, row[2], row[3])
            elif kind == "part":
                self._view(*row[:-1])
            elif kind == "matmul":
                self._matmul(*row)
            else:
                self.code += [_Step.FORGET, row[0]]

    def _view(
        self, slot: int, of: int, offset: int, size: Sequence[int | str], stride: Sequence[int | str]
    ) -> None:
        self.code += [_Step.MAKE_VIEW, slot, of, *self._varying(size, stride), self._constant(offset)]

    def wanted(self, slot: int) -> str:
        """What is needed of an input, as `launcher.h` has it."""
        return "m" if slot in self.multiplied else "p" if slot in self.addressed else "-"

    def _matmul(
        self,
        dtype: str,
        sizes: Sequence[int],
        activation: str,
        out: _Operand,
        left: _Operand,
        right: _Operand,
        bias: tuple[int, int] | None,
    ) -> None:
        matrices = [_Matrix(*operand[2:]) for operand in (out, left, right)]
        epilogue = EPILOGUES[activation] + (_BIAS if bias is not None else 0) or _NO_EPILOGUE
        self.code += [_Step.MULTIPLY, len(self.matmuls)]
        self.matmuls.append(_Matmul(TYPES[dtype], epilogue, bias is not None, *sizes, *matrices))
        for slot, offset, *_ in (out, left, right, bias or (-1, 0)):
            self.code += [slot, offset]
            self.multiplied.add(slot)

    def _launch(self, kernel: str, operands: Sequence[int | str], letters: str) -> None:
        if kernel not in self.kernels:
            self.kernels.append(kernel)
        assert len(operands) == len(letters), f"{kernel} takes {len(letters)} arguments"
        self.launches += 1
        known = True
        words: list[int] = []
        for operand in operands:
            if isinstance(operand, int):
                words.append(operand)
                self.addressed.add(operand)
            else:
                number = self._number(operand)
                known = known and not self._varies(operand)
                words += [-1, *number]
        self.code += [_Step.LAUNCH, self.kernels.index(kernel), int(known), *words]

    def _number(self, value: int | str) -> list[int]:
        program = postfix(value, self.symbols)
        return [len(program), *program]

    def _varies(self, value: int | str) -> bool:
        return isinstance(value, str) and not value.lstrip("-").isdigit()

    def _arguments(self, size: Sequence[int | str], stride: Sequence[int | str], dtype: Any) -> list[int]:
        if not any(isinstance(n, str) for n in (*size, *stride)):
            return [self._constant((size, stride, dtype))]
        return [*self._varying(size, stride), self._constant(dtype)]

    def _varying(self, size: Sequence[int | str], stride: Sequence[int | str]) -> list[int]:
        numbers = [word for n in (*size, *stride) for word in self._number(n)]
        return [-1, len(size), *numbers]

    def _constant(self, value: Any) -> int:
        if value not in self.constants:
            self.constants.append(value)
        return self.constants.index(value)
