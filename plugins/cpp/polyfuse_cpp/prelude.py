"""The C++ text every generated kernel starts with: the portable vector layer of ``prelude/``.

``prelude_for({"reduce", "math_f32"}, lanes=16, register_bytes=64)`` returns the headers a kernel needs, in
order, with ``PF_W`` and ``PF_BYTES`` defined.  Names of features are names of header files; ``core`` is
always there.  What the text offers is described in ``prelude/README.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from importlib import resources

from polyfuse.base.digest import digest

CORE: tuple[str, ...] = ("types", "arith", "convert", "memory", "round")
"""Headers that are always included, in order."""

FEATURES: dict[str, tuple[str, ...]] = {
    "omp": (),
    "reduce": (),
    "check": ("reduce",),
    "divide": ("reduce",),
    "apart": (),
    "math_f32": (),
    "math_f64": ("math_f32",),
    "trig_f32": ("math_f32", "reduce"),
    "hyper_f32": ("math_f64",),
    "special": ("math_f64",),
    "shuffle": (),
    "gather": ("shuffle",),
    "atomic": (),
    "kernel": ("omp",),
    "bytes": (),
    "byte_ops": ("bytes",),
    "stream": (),
    "tile": ("shuffle", "stream"),
    "interleave": ("shuffle", "stream"),
    "window": ("shuffle", "kernel"),
    "scan": (),
    "update": ("atomic", "kernel", "reduce"),
    "block_reduce": ("reduce", "kernel", "math_f32"),
    "extremes": ("scan", "block_reduce"),
    "online": ("reduce", "math_f32"),
    "matmul": ("tile", "interleave", "kernel", "reduce"),
    "pairs": ("matmul",),
    "nibbles": ("matmul",),
    "attention_call": ("pairs", "math_f32"),
    "attention": ("attention_call",),
    "flex": ("attention",),
    "taps": (),
}
"""Optional headers in printing order, each with the headers it needs."""

_SCALAR_HEADERS: dict[str, tuple[str, ...]] = {
    "f32": ("math_f32", "trig_f32", "hyper_f32", "special", "divide"),
    "f64": ("math_f64", "special", "divide"),
}
"""Where the functions for scalar operators on a type are, the first one counting; `divide` for integers."""

_FUNCTION = re.compile(r"^(?:template <[^>]*>\s*)?PF_INLINE \S+ (\w+)\(|PF_\w+\((\w+)[,)]", re.MULTILINE)


def features_for(op: str, dtype: str) -> tuple[str, ...]:
    """The features that scalar operator *op* on *dtype* needs beyond the core (often none)."""
    headers = _SCALAR_HEADERS.get(dtype, ("divide",))
    return next(((name,) for name in headers if op in _functions(name)), ())


@cache
def functions_apart() -> frozenset[str]:
    """Functions of one f32 that the feature `apart` has twice: `apart_exp`, not inlined, beside `exp`."""
    headers = (header_text(name) for name in _SCALAR_HEADERS["f32"])
    return frozenset(name for text in headers for name in re.findall(r"PF_F32_1\((\w+)\)", text)) - {"NAME"}


@cache
def store_modes() -> tuple[str, ...]:
    """The stores that the layer has."""
    return ("set", *re.findall(r"PF_MODE\(([a-z]+)", header_text("update")))


@cache
def _functions(header: str) -> frozenset[str]:
    """Functions that a header defines."""
    return frozenset(name for pair in _FUNCTION.findall(header_text(header)) for name in pair if name)


@cache
def header_text(name: str) -> str:
    """The text of one header of the layer."""
    return resources.files(__package__).joinpath("prelude", f"{name}.h").read_text(encoding="utf-8")


@cache
def headers_digest() -> str:
    """A digest of the whole layer: a kernel built with other headers is another kernel."""
    return digest(*(header_text(name) for name in sorted({*CORE, *FEATURES, "binding"})))


def needed_headers(features: Iterable[str]) -> tuple[str, ...]:
    """The headers for *features* and what they depend on, in printing order.

    Raises:
        ValueError: a feature is unknown.
    """
    wanted: set[str] = set()
    pending = list(features)
    while pending:
        name = pending.pop()
        if name == "core" or name in wanted:
            continue
        if name not in FEATURES:
            raise ValueError(
                f"unknown prelude feature {name!r}; choose from {', '.join(('core', *FEATURES))}"
            )
        wanted.add(name)
        pending.extend(FEATURES[name])
    return CORE + tuple(name for name in FEATURES if name in wanted)


def prelude_for(
    features: Iterable[str] = (),
    *,
    lanes: int = 1,
    register_bytes: int = 16,
    gathers: int = 2,
    dots: Iterable[str] = (),
    saturates: bool = True,
) -> str:
    """C++ text with the vector layer for *lanes* lanes on registers of *register_bytes* bytes.

    *gathers* is what `isa.gathers` says, *dots* are the macros of `isa.dot_instructions`. *saturates*: what
    is too large for ``float8_e4m3fn`` becomes the largest number.
    """
    head = f"#define PF_W {lanes}\n#define PF_BYTES {register_bytes}\n#define PF_GATHERS {gathers}\n"
    head += f"#define PF_E4M3_SATURATES {int(saturates)}\n"
    head += "".join(f"#define {macro} 1\n" for macro in dots)
    return head + "".join(header_text(name) for name in needed_headers(features))
