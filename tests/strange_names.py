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
        "result_view",
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

MEMBERS = (
    *(
        "if",
        "None",
        "a b",
        "a-b",
        "\n",
        "x\ny",
        '"',
        "'",
        "\\",
        "{x}",
        "%s",
        "%(x)s",
        "0",
        "1a",
    ),
    *("a/b", "/abs", "a\tb", "$x", "`ls`", "//", "/*", "*/", "#", "??/", 'R"(', "L'", "a" * 300, " ", "\r"),
    *("\x7f", "\u202e", "a:b", "*", "?", "<>", "|", "é", "e\u0301", "ﬁ", "_", "__", "\U0001f4a5", "self"),
)
"""Names that members of modules can have, which are no names of arguments."""

Made = Callable[..., Tensor]


def function(names: Sequence[str]) -> Made:
    """A function with arguments so named, where each one counts otherwise. Most are read by few operators, as
    tracing is what takes the time.
    """
    body = [f"def made({', '.join(names)}, *, torch__=torch__):", f"    total__ = {names[0]} * 0"]
    for i in range(0, len(names), 12):
        some = names[i : i + 12]
        shares = [(i + k + 1) / len(names) for k in range(len(some))]
        body.append(f"    mixed__ = torch__.stack([{', '.join(some)}], -1) * torch__.tensor({shares})")
        body.append("    total__ = total__ + mixed__.sum(-1)")
        name = some[i // 12 % len(some)]
        product = f"torch__.mm(total__, {name}.t() @ {name} / 8) + total__.amax()"
        wider = product if i // 12 % 2 else f"total__.softmax(-1) * {name}"
        body.append(f"    total__ = torch__.nn.functional.layer_norm({wider}, (8,), eps=0.1)")
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
        self.register_parameter(parameter, nn.Parameter(torch.randn(8, generator=generator)))
        self.register_buffer(buffer, torch.randn(8, generator=generator))

    def values(self) -> list[Tensor]:
        """Both of them."""
        return [*self._parameters.values(), *self._buffers.values()]  # type: ignore[list-item]


class Named(nn.Module):
    """Submodules, parameters, buffers and arguments with such names. A third of the names are submodules,
    which hold names of the other thirds once more.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        usable = [name for name in names if not hasattr(nn.Module, name) and not hasattr(Leaf, name)]
        usable = [name for name in usable if name not in ("training", "T_destination", *nn.Module().__dict__)]
        self.parts, self.own = usable[0::3], [*usable[1::3], *usable[2::3]]
        for i, name in enumerate(self.parts):
            self.add_module(name, Leaf(usable[i - 1], usable[i - 2], i))
        for i, name in enumerate(self.own):
            value = torch.linspace(-1, 1, 8).roll(i) * (1 + i / len(self.own))
            if i % 2:
                self.register_buffer(name, value)
            else:
                self.register_parameter(name, nn.Parameter(value))
        self.argument_names = tuple(names[:6])

    def combined(self, *args: Tensor) -> Tensor:
        """What `forward` computes, which has arguments of the names."""
        x = args[0]
        for i, arg in enumerate(args[1:], 2):
            x = x + arg / i
        values = [value for name in self.parts for value in self._modules[name].values()]  # type: ignore
        values += [self._parameters[n] if n in self._parameters else self._buffers[n] for n in self.own]
        for i in range(0, len(values), 12):
            some = torch.stack(values[i : i + 12], -1)
            shares = (torch.arange(some.shape[-1]) + 1) / 12
            x = nn.functional.layer_norm(x.softmax(-1) + (some * shares).mean(-1), (8,), eps=0.1)
        return x.softmax(-1) + x


class Members(nn.Module):
    """Parameters, buffers and submodules in turn, of names that no attribute can be written with."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(len(names))
        for i, name in enumerate(names):
            value = torch.randn(4, generator=generator)
            if i % 3 == 0:
                self.register_parameter(name, nn.Parameter(value))
            elif i % 3 == 1:
                self.register_buffer(name, value)
            else:
                self.add_module(name, Leaf(names[i - 1], names[i - 2], i))

    def forward(self, x: Tensor) -> Tensor:
        """A sum in which each counts otherwise."""
        inner = [value[:4] for part in self._modules.values() for value in part.values()]  # type: ignore
        values = [*self._parameters.values(), *self._buffers.values(), *inner]
        shares = torch.arange(len(values)) + 1.0
        return x + (torch.stack(values, -1) * shares).mean(-1)


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
