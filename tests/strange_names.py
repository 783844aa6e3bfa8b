"""Names that generated texts could take for something else, and models that have them everywhere."""

from __future__ import annotations

import builtins
import keyword
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

PYTHON = [
    *[w for w in dir(builtins) if w[0].islower() and w.isidentifier()],
    *keyword.softkwlist,
    *[
        "math",
        "torch",
        "args",
        "call",
        "self",
        "cls",
        "main",
        "NAME",
        "KERNELS",
        "OBJECTS",
        "INPUTS",
        "NAMES",
        "CHECKS",
        "ALIGNED",
        "DEVICE",
    ],
    *[
        "GRAPH",
        "PARTITIONS",
        "VIEWS",
        "call_partitioned",
        "operator",
        "reinterpret_tensor",
        "assert_size_stride",
        "conform",
        "observe",
    ],
    *[
        "empty_strided_cpu",
        "realigned",
        "device_guard",
        "synchronize",
        "float32",
        "bfloat16",
        "int64",
        "bool8",
        "inf",
        "nan",
    ],
]
CPP = [
    "alignas",
    "alignof",
    "and_eq",
    "asm",
    "auto",
    "bitand",
    "bitor",
    "case",
    "catch",
    "char",
    "char8_t",
    "co_await",
    "compl",
    "concept",
    "const",
    "constexpr",
    "const_cast",
    "decltype",
    "default",
    "delete",
    "do",
    "double",
    "dynamic_cast",
    "enum",
    "explicit",
    "export",
    "extern",
    "friend",
    "goto",
    "inline",
    "long",
    "mutable",
    "namespace",
    "new",
    "noexcept",
    "not_eq",
    "nullptr",
    "operator",
    "or_eq",
    "private",
    "protected",
    "public",
    "register",
    "reinterpret_cast",
    "requires",
    "short",
    "signed",
    "sizeof",
    "static",
    "static_assert",
    "struct",
    "switch",
    "template",
    "this",
    "thread_local",
    "throw",
    "typedef",
    "typeid",
    "typename",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "wchar_t",
    "xor",
    "xor_eq",
    "restrict",
    "_Bool",
    "_Complex",
    "_Atomic",
    "NULL",
    "EOF",
    "INT_MAX",
    "INT64_MAX",
    "INT64_C",
    "UINT64_C",
    "CHAR_BIT",
    "assert",
    "major",
    "minor",
    "linux",
    "unix",
    "errno",
    "stdin",
    "stdout",
    "stderr",
    "__linux__",
    "__FILE__",
    "__LINE__",
    "__cplusplus",
    "__AVX2__",
    "PF_OK",
    "PF_ANY_CPU",
    "PF_MAX_RANK",
    "POLYFUSE_KERNEL",
    "offsetof",
    "M_PI",
    "INFINITY",
    "NAN",
    "BUFSIZ",
    "RAND_MAX",
    "EXIT_SUCCESS",
    "_WIN32",
    "_GNU_SOURCE",
    "signbit",
    "isnan",
    "isinf",
    "I",
    "complex",
    "st_mtime",
    "s_addr",
    "main",
    "printf",
    "malloc",
    "free",
    "memcpy",
    "memset",
    "strlen",
    "exit",
    "abort",
    "rand",
    "sqrt",
    "expf",
    "tanhf",
    "erff",
    "fmaxf",
    "y0",
    "y1",
    "j0",
    "jn",
    "gamma",
    "index",
    "time",
    "signal",
    "read",
    "write",
    "open",
    "close",
    "std",
    "string",
    "vector",
    "size_t",
    "int64_t",
    "uint8_t",
    "uintptr_t",
    "index_div",
    "index_max",
    "word",
    "owner",
    "memory",
    "give",
    "take",
    "ref",
    "in",
    "out",
    "lent",
    "fetch",
    "answer",
    "solve",
    "fail",
    "Sca",
    "Vec",
    "splat",
    "lane",
    "cast",
    "fill",
    "iota",
    "gather",
    "scatter",
    "policy",
    "tr",
    "with",
    "begin",
    "end",
    "shape",
    "omp_get_num_threads",
    "answer",
    "model_name",
    "find_sizes",
    "lacking",
]
HALIDE_AND_TRITON = [
    "tl",
    "tld",
    "triton",
    "libdevice",
    "hl",
    "Func",
    "Var",
    "RDom",
    "Expr",
    "select",
    "clamp",
    "xindex",
    "xmask",
    "pid",
    "num_warps",
    "program_id",
    "arange",
    "load",
    "store",
    "where",
    "exp",
    "log2",
    "cdiv",
    "BLOCK",
    "XBLOCK",
    "lanes",
    "parallel",
    "vectorize",
    "schedule",
]
OURS = [
    *[
        f"{p}{n}"
        for p in ("in", "out", "inout", "row", "buf", "tmp", "i", "r", "s", "u", "p", "v", "h")
        for n in (0, 1)
    ],
    *[
        f"{p}{n}"
        for p in ("k_", "n_", "r_", "p_", "s_", "m_", "q_", "op", "call", "constant", "object", "wait")
        for n in (0,)
    ],
    *[
        "arg0_1",
        "arg1_1",
        "primals_1",
        "primals_2",
        "tangents_1",
        "i0_row0",
        "i1_x",
        "v_x",
        "in0_",
        "view_1",
        "pool_1",
        "result_1",
        "number_1",
    ],
    *[
        "aten_mm_out",
        "aten_mm_default",
        "aten_add_Tensor",
        "fused_pointwise_0",
        "fused_max_exp_sum_div_0",
        "partition_0",
        "s77",
        "u0",
        "zf0",
    ],
    *[
        "graph",
        "kernel",
        "buffer",
        "input",
        "output",
        "node",
        "local",
        "loop",
        "once",
        "symbols",
        "hints",
        "none",
        "true",
        "false",
        "host",
        "object",
        "dtype",
    ],
]
PAIRS = [
    "len_",
    "len",
    "len__",
    "a_b",
    "a__b",
    "_ab",
    "Row0",
    "ROW0",
    "row0_",
    "In0",
    "NULL_",
    "Null",
    "aten_mm_out_",
    "x",
    "X",
    "x_",
    "_x",
    "p_x",
    "b_x",
    "f_",
    "F",
]
UNICODE = [
    "größe",
    "ñ",
    "名",
    "ﬁ",
    "fi",
    "µ",
    "μ",
    "Ω",
    "ℵ",
    "_名",
    "x1ñ",
    "ßß",
    "İ",
    "ı",
    "ª",
    "наименование",
]

NAMES = tuple(
    name
    for name in dict.fromkeys((*PAIRS, *OURS, *UNICODE, *CPP, *HALIDE_AND_TRITON, *PYTHON))
    if name.isidentifier() and not keyword.iskeyword(name)
)
"""All of them that Python allows as names."""

WORDS = tuple({unicodedata.normalize("NFKC", name): None for name in NAMES})
"""Those that are names of arguments: Python takes some that are written otherwise for the same."""

Made = Callable[..., Tensor]


def function(names: Sequence[str]) -> Made:
    """A function with arguments so named, where each one counts otherwise."""
    body = [f"def made({', '.join(names)}, *, torch__=torch__):", f"    total__ = {names[0]} * 0"]
    for i, name in enumerate(names):
        body.append(f"    total__ = total__ + {name} * {i + 1} / {len(names)}")
        if i % 16 == 3:
            body.append(f"    total__ = torch__.nn.functional.layer_norm(total__.softmax(-1) * {name}, (8,))")
        if i % 16 == 9:
            body.append(f"    total__ = torch__.mm(total__, {name}.t() @ {name} / 8) + total__.amax()")
    body.append("    return total__.softmax(-1) - total__.sum(-1, keepdim=True) / 7")
    space: dict[str, Any] = {"torch__": torch}
    exec("\n".join(body), space)
    made: Made = space["made"]
    return made


def inputs(count: int, rows: int = 4) -> tuple[Tensor, ...]:
    """Tensors for `function`, each different."""
    generator = torch.Generator().manual_seed(count)
    return tuple(torch.randn(rows, 8, generator=generator) for _ in range(count))


class Leaf(nn.Module):
    """A submodule with one parameter and one buffer, of names that are given."""

    def __init__(self, parameter: str, buffer: str, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.register_parameter(parameter, nn.Parameter(torch.randn(8, 8, generator=generator)))
        self.register_buffer(buffer, torch.randn(8, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        (weight,), (shift,) = self._parameters.values(), self._buffers.values()
        return torch.mm(x, weight).softmax(-1) + shift * x  # type: ignore[arg-type, operator]


class Named(nn.Module):
    """Submodules, parameters, buffers and arguments with such names; calls count in a mutated buffer."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        usable = [name for name in names if not hasattr(nn.Module, name) and not hasattr(Leaf, name)]
        usable = [name for name in usable if name not in ("training", "T_destination", *nn.Module().__dict__)]
        self.parts: list[str] = usable[:8]
        for i, name in enumerate(usable[:8]):
            transposed = usable[i:] + usable[:i]
            self.add_module(name, Leaf(transposed[1 % len(transposed)], transposed[2 % len(transposed)], i))
        for i, name in enumerate(usable[8:]):
            value = torch.full((8,), 1.0 + i / 8)
            if i % 2:
                self.register_buffer(name, value)
            else:
                self.register_parameter(name, nn.Parameter(value))
        self.own = tuple(usable[8:])
        self.argument_names = tuple(names[:6])

    def combined(self, *args: Tensor) -> Tensor:
        """What `forward` computes, which has arguments of the names."""
        x = args[0]
        for i, arg in enumerate(args[1:], 2):
            x = x + arg / i
        for name in self.parts:
            x = self._modules[name](x)  # type: ignore[misc]
        for i, name in enumerate(self.own):
            found = self._parameters.get(name)
            x = x * (self._buffers[name] if found is None else found) - i / 9  # type: ignore[operator]
            if i % 3 == 0:
                x = nn.functional.layer_norm(x, (8,))
        return x.softmax(-1) + x


def module(names: Sequence[str]) -> nn.Module:
    """`Named` with a forward whose arguments have the first six of the names."""
    arguments = ", ".join(name for name in names[:6])
    space: dict[str, Any] = {"Base__": Named}
    exec(
        f"class Made(Base__):\n"
        f"    def forward(self__, {arguments}):\n"
        f"        return self__.combined({arguments})\n",
        space,
    )
    made: nn.Module = space["Made"](names).eval()
    return made


def batches(names: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """The names in batches; names that differ little stay together."""
    return [tuple(names[i : i + size]) for i in range(0, len(names), size)]
