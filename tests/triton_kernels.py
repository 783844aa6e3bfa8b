"""Kernels as IR text at the sizes of a GPU, for tests of the Triton code generator."""

from __future__ import annotations

from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse import parse

__all__ = ["KERNELS", "kernel"]


def kernel(name: str) -> Kernel:
    """The kernel of a name."""
    found = parse(KERNELS[name])
    assert isinstance(found, Kernel)
    return found


def _text(axes: str, raxes: str, arguments: str, body: str, symbols: str = "") -> str:
    lines = ["kernel k on cuda {"]
    if symbols:
        lines.append(f"symbols {symbols}")
    lines.append("numerics fast")
    if axes:
        lines.append(f"axes {axes}")
    if raxes:
        lines.append(f"raxes {raxes}")
    return "\n".join([*lines, arguments, body, "}"])


_SOFTMAX = """
loop {{
  v1 = load f32 in0[{n}*p0 + r0]
  v2 = reduce f32 max (v1)
}}
loop {{
  v3 = load f32 in0[{n}*p0 + r0]
  v4 = sub f32 (v3, v2)
  v5 = exp f32 (v4)
  store f32 set row0[r0] = v5
  v6 = reduce f32 sum (v5)
}}
loop {{
  v7 = load f32 row0[r0]
  v8 = div f32 (v7, v6)
  store f32 set out0[{n}*p0 + r0] = v8
}}
"""


def _softmax(m: int, n: int) -> str:
    arguments = f"in in0: f32[{m * n}] aligned\nout out0: f32[{m * n}] aligned\nrow_buffer row0: f32[{n}]"
    return _text(f"p0{{{m}}} ~ {m}", f"r0{{{n}}} ~ {n}", arguments, _SOFTMAX.format(n=n))


_GROUPED_ROWS = _text(
    "p0{16384} ~ 16384",
    "r0{4096} ~ 4096",
    "in in0: f32[67108864] aligned\nin in1: f32[67108864] aligned\ninout inout0: f32[2097152] aligned\n"
    "out out0: f32[67108864] aligned",
    """
loop {
  v1 = load f32 in0[4096*p0 + r0]
  v2 = load f32 in1[4096*p0 + r0]
  v3 = mul f32 (v1, v2)
  store f32 add inout0[r0 + 4096*(p0 // 32)] = v3
  v4 = reduce f32 sum (v3)
}
loop {
  v5 = load f32 in0[4096*p0 + r0]
  v6 = mul f32 (v5, v4)
  store f32 set out0[4096*p0 + r0] = v6
}
""",
)

_GROUPED_ELEMENTS = _text(
    "p0{16384} ~ 16384, p1{4096} ~ 4096",
    "",
    "in in0: f32[67108864] aligned\ninout inout0: f32[2097152] aligned\nout out0: f32[67108864] aligned",
    """
once {
  v1 = load f32 in0[4096*p0 + p1]
  v2 = exp f32 (v1)
  store f32 set out0[4096*p0 + p1] = v2
  store f32 add inout0[p1 + 4096*(p0 // 32)] = v2
}
""",
)


def _reduced(kind: str, m: int, n: int, index: str, dtype: str = "f32") -> str:
    """A reduction of `m` results of `n` points each."""
    position = "  v9 = index i64 <r0>\n" if kind.startswith("arg") else ""
    operands = "(v1, v9)" if position else "(v1)"
    results = {"argmax": "t0, t1", "welford": "t0, t1, t2", "online_softmax": "t0, t1"}.get(kind, "t0")
    body = f"loop {{\n  v1 = load {dtype} in0[{index}]\n{position}"
    body += f"  {results} = reduce {dtype} {kind} {operands}\n}}\nonce {{\n"
    arguments = [f"in in0: {dtype}[{m * n}] aligned"]
    for k, name in enumerate(results.split(", ")):
        held = "i64" if kind == "argmax" and k else dtype
        arguments.append(f"out out{k}: {held}[{m}] aligned")
        body += f"  store {held} set out{k}[p0] = {name}\n"
    return _text(f"p0{{{m}}} ~ {m}", f"r0{{{n}}} ~ {n}", "\n".join(arguments), body + "}")


_RMS_NORM = _text(
    "p0{16384} ~ 16384",
    "r0{4096} ~ 4096",
    "in in0: bf16[67108864] aligned\nin in1: bf16[4096] aligned\nout out0: bf16[67108864] aligned",
    """
once {
  v1 = const f32 0.000244140625
  v2 = const f32 9.999999974752427e-07
}
loop {
  v3 = load bf16 in0[4096*p0 + r0]
  v4 = cast f32 (v3)
  v5 = mul f32 (v4, v4)
  v6 = reduce f32 sum (v5)
}
once {
  v7 = mul f32 (v6, v1)
  v8 = add f32 (v7, v2)
  v9 = rsqrt f32 (v8)
}
loop {
  v10 = load bf16 in1[r0]
  v11 = cast f32 (v10)
  v12 = load bf16 in0[4096*p0 + r0]
  v13 = cast f32 (v12)
  v14 = mul f32 (v13, v9)
  v15 = mul f32 (v11, v14)
  v16 = cast bf16 (v15)
  store bf16 set out0[4096*p0 + r0] = v16
}
""",
)

_BIAS_GELU = _text(
    "p0{16384} ~ 16384, p1{768} ~ 768",
    "",
    "in in0: bf16[12582912] aligned\nin in1: bf16[768] aligned\nout out0: bf16[12582912] aligned",
    """
once {
  v1 = load bf16 in0[768*p0 + p1]
  v2 = cast f32 (v1)
  v3 = load bf16 in1[p1]
  v4 = cast f32 (v3)
  v5 = add f32 (v2, v4)
  v6 = const f32 0.5
  v7 = mul f32 (v5, v6)
  v8 = const f32 0.7071067690849304
  v9 = mul f32 (v5, v8)
  v10 = erf f32 (v9)
  v11 = const f32 1.0
  v12 = add f32 (v10, v11)
  v13 = mul f32 (v7, v12)
  v14 = cast bf16 (v13)
  store bf16 set out0[768*p0 + p1] = v14
}
""",
)


def _copy(dtype: str) -> str:
    return _text(
        "p0{8192} ~ 8192, p1{8192} ~ 8192",
        "",
        f"in in0: {dtype}[67108864] aligned\nout out0: {dtype}[67108864] aligned",
        f"once {{\n  v1 = load {dtype} in0[p0 + 8192*p1]\n  store {dtype} set out0[8192*p0 + p1] = v1\n}}",
    )


_DYNAMIC = _text(
    "p0{s0} ~ 4096, p1{s1} ~ 768",
    "",
    "in in0: f32[s0*s1] aligned\nin in1: f32[s1] aligned\nout out0: f32[s0*s1] aligned\n"
    "size s0: i64 ~ 4096\nsize s1: i64 ~ 768",
    """
once {
  v1 = load f32 in0[p0*s1 + p1]
  v2 = load f32 in1[p1]
  v3 = mul f32 (v1, v2)
  store f32 set out0[p0*s1 + p1] = v3
}
""",
    symbols="s0{2..}, s1{2..}",
)


def _scan(m: int, n: int) -> str:
    arguments = f"in in0: f32[{m * n}] aligned\nout out0: f32[{m * n}] aligned"
    body = f"loop {{\n  v1 = load f32 in0[{n}*p0 + r0]\n  v2 = scan f32 sum (v1)\n"
    body += f"  store f32 set out0[{n}*p0 + r0] = v2\n}}"
    return _text(f"p0{{{m}}} ~ {m}", f"r0{{{n}}} ~ {n}", arguments, body)


def _scatter(dtype: str, mode: str) -> str:
    arguments = f"in in0: {dtype}[1048576] aligned\nin in1: i64[1048576] aligned\ninout inout0: {dtype}[4096]"
    body = f"once {{\n  v1 = load i64 in1[p0]\n  v2 = load {dtype} in0[p0]\n"
    body += f"  store {dtype} {mode} inout0[@0{{4096}}] @(v1) = v2\n}}"
    return _text("p0{1048576} ~ 1048576", "", arguments, body)


_DROPOUT = _text(
    "p0{1048576} ~ 1048576",
    "",
    "in in0: i64[1]\nin in1: f32[1048576] aligned\nout out0: f32[1048576] aligned",
    """
once {
  v1 = load i64 in0[0]
  v2 = index i64 <p0>
  v3 = rand f32 uniform (v1, v2)
  v4 = const f32 0.1
  v5 = gt bool (v3, v4)
  v6 = load f32 in1[p0]
  v7 = const f32 0.0
  v8 = where f32 (v5, v6, v7)
  store f32 set out0[p0] = v8
}
""",
)

KERNELS: dict[str, str] = {
    "softmax": _softmax(16384, 1024),
    "softmax_long": _softmax(1024, 50304),
    "rms_norm": _RMS_NORM,
    "bias_gelu": _BIAS_GELU,
    "transpose": _copy("f32"),
    "transpose_bf16": _copy("bf16"),
    "dynamic": _DYNAMIC,
    "sum_rows": _reduced("sum", 8192, 8192, "8192*p0 + r0"),
    "sum_columns": _reduced("sum", 8192, 8192, "p0 + 8192*r0"),
    "short_rows": _reduced("max", 1048576, 48, "48*p0 + r0"),
    "argmax": _reduced("argmax", 4096, 8192, "8192*p0 + r0"),
    "welford": _reduced("welford", 512, 100000, "100000*p0 + r0"),
    "online_softmax": _reduced("online_softmax", 4096, 32000, "32000*p0 + r0"),
    "scan": _scan(8192, 1024),
    "scan_long": _scan(132, 100000),
    "scatter_add": _scatter("f32", "add"),
    "scatter_mul_bf16": _scatter("bf16", "mul"),
    "scatter_max_u8": _scatter("u8", "max"),
    "dropout": _DROPOUT,
    "grouped_rows": _GROUPED_ROWS,
    "grouped_elements": _GROUPED_ELEMENTS,
}
