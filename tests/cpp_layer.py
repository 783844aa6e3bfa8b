"""Builds small kernels on the vector layer, one unit for many operators, and runs them on tensors."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from polyfuse.torch_compat.bindings import tensor_data_ptr_address
from polyfuse_cpp.bindings import KernelCall, bindings_text, load_library
from polyfuse_cpp.isa import ISAS, Isa, detect_isa
from polyfuse_cpp.prelude import FEATURES, features_for, prelude_for
from polyfuse_cpp.toolchain import build_library, find_toolchain

DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16,
    "i8": torch.int8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64,
    "u8": torch.uint8, "u16": torch.uint16, "u32": torch.uint32, "u64": torch.uint64, "bool": torch.bool,
}  # fmt: skip
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
FLOATS = ("f32", "f64")


@dataclass(frozen=True)
class Level:
    """One way to compile the layer: an instruction set and a lane count."""

    name: str
    isa: Isa
    lanes: int


def level_params() -> list[Any]:
    """`levels` for parametrize: this machine's own width always, the others among the slow tests. Each unit
    has operators of scalars beside those of vectors."""
    return [
        pytest.param(level, id=level.name, marks=() if level.name == detect_isa().name else pytest.mark.slow)
        for level in levels()
    ]


def levels() -> list[Level]:
    """Every width this machine can run, the paired and the native form of 8-byte elements both included."""
    names = list(ISAS)
    usable = names[names.index(detect_isa().name) :]
    made = []
    for name in usable:
        isa = ISAS[name]
        if isa.machines and not set(isa.machines) & set(detect_isa().machines):
            continue
        made.append(Level(name, isa, isa.lanes))
        if name == "avx512":
            made.append(Level("avx512-half", isa, 8))
    return made


@dataclass(frozen=True)
class Op:
    """A kernel `out[i] = expression(a, b, c)[i]`, in vector and in scalar form."""

    name: str
    expression: str
    inputs: tuple[str, ...]
    output: str


def op_text(op: Op) -> tuple[str, dict[str, str]]:
    """C++ of both forms of *op* and their signatures."""
    names = "abc"[: len(op.inputs)]
    parameters = ", ".join(f"const {t}* p{n}" for n, t in zip(names, op.inputs, strict=True))
    whole = "".join(f"auto {n} = load<L>(p{n} + i); " for n in names)
    part = "".join(f"auto {n} = load_n<L>(p{n} + i, n - i); " for n in names)
    head = f"{parameters}, {op.output}* o, i64 n"
    text = f"""
extern "C" void v_{op.name}({head}) {{
  typedef Vec L; i64 i = 0;
  for (; i + PF_W <= n; i += PF_W) {{ {whole} store(o + i, {op.expression}); }}
  if (i < n) {{ {part} store_n(o + i, {op.expression}, n - i); }}
}}
extern "C" void s_{op.name}({head}) {{
  typedef Sca L;
  for (i64 i = 0; i < n; ++i) {{ {whole} store(o + i, {op.expression}); }}
}}
"""
    signature = "p" * (len(op.inputs) + 1) + "i"
    return text, {f"v_{op.name}": signature, f"s_{op.name}": signature}


def build(
    level: Level,
    text: str,
    kernels: dict[str, str],
    features: tuple[str, ...] = tuple(FEATURES),
    gathers: int = 2,
) -> dict[str, KernelCall]:
    """Compile *text* on the layer at *level*."""
    try:
        toolchain = find_toolchain()
    except Exception as error:
        pytest.skip(
            f"no C++ compiler is installed that the backend can use, and the test compiles with it: {error}"
        )
    source = prelude_for(
        features, lanes=level.lanes, register_bytes=level.isa.register_bytes, gathers=gathers
    )
    source += "using namespace pf;\n" + text + bindings_text(kernels)
    folder = Path(tempfile.mkdtemp(prefix="polyfuse-test-"))
    (folder / "k.cpp").write_text(source)
    build_library(toolchain, level.isa, folder / "k.cpp", folder / "k.so", name=f"test {level.name}")
    return load_library(folder / "k.so", tensor_data_ptr_address())


def build_ops(level: Level, ops: list[Op]) -> dict[str, KernelCall]:
    """Compile all *ops* in one unit."""
    texts, kernels, features = [], {}, {"divide": None, "special": None}
    for op in ops:
        text, signatures = op_text(op)
        texts.append(text)
        kernels.update(signatures)
        for dtype in op.inputs:
            features.update(dict.fromkeys(features_for(op.name.split("__")[0], dtype)))
    return build(level, "".join(texts), kernels, tuple(features))


def run(kernels: dict[str, KernelCall], form: str, op: Op, *inputs: torch.Tensor) -> torch.Tensor:
    """Run one form (`v` or `s`) of *op*; memory past the end is checked to be untouched."""
    n = inputs[0].numel()
    out = torch.zeros(n + 8, dtype=DTYPES[op.output])
    kernels[f"{form}_{op.name}"](*inputs, out, n)
    assert not out[n:].any(), f"{op.name} wrote past the end"
    return out[:n]
