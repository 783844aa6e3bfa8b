"""A kernel as C++: loops over 32-bit indices. What has no text here is refused."""

from polyfuse import plugin as pf
from polyfuse.plugin import DType

TYPES = {
    DType.f32: "float",
    DType.bool: "bool",
    **{DType(f"i{bits}"): f"int{bits}_t" for bits in (8, 16, 32, 64)},
    **{DType(f"u{bits}"): f"uint{bits}_t" for bits in (8, 16, 32, 64)},
}

_MATH = (
    "exp exp2 expm1 log log2 log10 log1p erf erfc sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh"
)
_SAME = "atan2 hypot sqrt floor ceil trunc copysign nextafter fmin fmax fma pow abs isnan isinf signbit"
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<="}
_SIGNS |= {"gt": ">", "ge": ">=", "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}
OPS = {
    **{name: f"std::{name}({{0}})" for name in _MATH.split()},
    **{name: f"std::{name}({{args}})" for name in _SAME.split()},
    **{name: f"({{0}} {sign} {{1}})" for name, sign in _SIGNS.items()},
    "neg": "(-{0})",
    "reciprocal": "(1 / {0})",
    "rsqrt": "(1 / std::sqrt({0}))",
    "round": "std::nearbyint({0})",
    "sign": "(({0} > 0) - ({0} < 0))",
    "where": "({0} ? {1} : {2})",
    "sigmoid": "float(1 / (1 + std::exp(-double({0}))))",
    "minimum": "least({0}, {1})",
    "maximum": "greatest({0}, {1})",
}

HEADER = """#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>
template <class T> T least(T a, T b) { return a != a || a < b ? a : b; }
template <class T> T greatest(T a, T b) { return a != a || a > b ? a : b; }
static int index_div(int a, int b) { return a / b - (a % b && (a < 0) != (b < 0)); }
static int index_mod(int a, int b) { return a - index_div(a, b) * b; }
static int index_min(int a, int b) { return a < b ? a : b; }
static int index_max(int a, int b) { return a > b ? a : b; }
constexpr float inf = std::numeric_limits<float>::infinity(), none = std::numeric_limits<float>::quiet_NaN();
"""

# Where their values start, and what one more `x` does to them.
_SPECIAL = {
    "welford": (  # a mean stays infinite, as that of eager mode's sum does
        ("0", "0", "0"),
        "{2} += 1; {{ float d = {x} - {0}, m = {0} + d / {2};"
        " {0} = m == m ? m : {0} + {x}; {1} += d * ({x} - {0}); }}",
    ),
    "online_softmax": (
        ("-inf", "0"),
        "if ({x} > {0}) {{ {1} *= {0} == -inf ? 0 : std::exp({0} - {x}); {0} = {x}; }}"
        " {1} += {x} == {0} && {x} != -inf ? 1 : std::exp({x} - {0});",
    ),
}


def claims(node):
    """Loops over types and operations that have a text."""
    if not isinstance(node, pf.LoopNode) or isinstance(node, pf.Scan):
        return pf.No(f"no {type(node).__name__.lower()} on this device")
    if isinstance(node, pf.Reduction) and node.kind not in _SPECIAL:
        kind = pf.REDUCTIONS.get(node.kind)
        if kind is None or not kind.is_plain:
            return pf.No(f"no reduction {node.kind}")
    if getattr(node, "mode", "set") not in (*pf.STORE_MODES, "check"):
        return pf.No(f"no store mode {node.mode}")
    for expr in pf.walk(*node.expressions()):
        if expr.dtype not in TYPES:
            return pf.No(f"the device has no {expr.dtype}")
        if expr.op in ("rand", "bitcast") or (expr.op in pf.SCALAR_OPS and expr.op not in OPS):
            return pf.No(f"no operation {expr.op}")
        if expr.op in ("sign", "bitwise_not") and not expr.dtype.is_float:
            return pf.No(f"no operation {expr.op} on {expr.dtype}")
    return pf.Yes()


def kernel_text(kernel, unroll):
    """The function that runs a kernel, with its innermost loops unrolled so often."""
    w = pf.kit.Writer("  ")
    with w.block(f'extern "C" void {pf.Source.SYMBOL}(const int64_t* given)'):
        for k, arg in enumerate(kernel.args):
            kind = "const int" if arg.kind == "size" else f"{TYPES[arg.dtype]}* const"
            value = "int" if arg.kind == "size" else f"{TYPES[arg.dtype]}*"
            w.line(f"{kind} {arg.name} = ({value})given[{k}];")
        for row in kernel.row_buffers:
            w.line(f"std::vector<{_cell(row.dtype)}> {row.name}({_index(row.size)});")
        points = [_loop(a, n) for a, n in zip(kernel.axes, kernel.sizes, strict=True)]
        loops = [_loop(a, n) for a, n in zip(kernel.raxes, kernel.rsizes, strict=True)]
        for head in points:
            w.line(head + " {")
        for section in kernel.sections:
            reduces = [stmt for stmt in section.body if isinstance(stmt, pf.Reduce)]
            for stmt in reduces:
                for target, start in zip(stmt.targets, _starts(stmt), strict=True):
                    w.line(f"{TYPES[stmt.dtype]} {target} = {start};")
            if not section.looped:
                for stmt in section.body:
                    w.line(_statement(stmt))
                continue
            for depth, head in enumerate(loops):
                if unroll > 1 and depth == len(loops) - 1:
                    w.line(f"#pragma GCC unroll {unroll}")
                w.line(head + " {")
            for stmt in section.body:
                w.line(_statement(stmt))
            w.line("}" * len(loops))
        w.line("}" * len(points))
    return w.text()


def _cell(dtype):
    return "char" if dtype is DType.bool else TYPES[dtype]  # std::vector<bool> has no addresses


def _loop(variable, size):
    name = pf.axis_name(variable)
    return f"for (int {name} = 0; {name} < {_index(size)}; ++{name})"


def _starts(stmt):
    plain = stmt.kind not in _SPECIAL
    return (constant(pf.identity(stmt.kind, stmt.dtype), stmt.dtype),) if plain else _SPECIAL[stmt.kind][0]


def constant(value, dtype):
    """A constant of a type."""
    if dtype.is_float:
        return f"float({float(value)!r})".replace("nan", "none")
    if dtype is DType.i64 and value == -(1 << 63):
        return "INT64_MIN"
    return f"{TYPES[dtype]}({int(value)}{'u' * (not dtype.is_signed and dtype is not DType.bool)}ll)"


def _statement(stmt):
    made = f"const {TYPES[stmt.dtype]} {stmt.targets[0]} = " if stmt.targets else ""
    match stmt:
        case pf.Compute():
            return f"{made}{OPS[stmt.op].format(*stmt.args, args=', '.join(stmt.args))};"
        case pf.Constant():
            return f"{made}{constant(stmt.value, stmt.dtype)};"
        case pf.Cast():
            return f"{made}({TYPES[stmt.dtype]}){stmt.arg};"
        case pf.IndexValue():
            return f"{made}{_index(stmt.index)};"
        case pf.Load():
            read = f"{stmt.buffer}[{_index(stmt.index, stmt.indirect)}]"
            return f"{made}{read};" if stmt.mask is None else f"{made}{stmt.mask} ? {read} : {stmt.other};"
        case pf.Reduce():
            x = stmt.args[0]
            if stmt.kind in _SPECIAL:
                return _SPECIAL[stmt.kind][1].format(*stmt.targets, x=x)
            target = stmt.targets[0]
            return f"{target} = {OPS[pf.REDUCTIONS[stmt.kind].combine].format(target, x)};"
        case pf.Store():
            mask = "" if stmt.mask is None else f"if ({stmt.mask}) "
            if stmt.mode == "check":
                return f'{mask}throw std::runtime_error("a value from data is out of range");'
            element = f"{stmt.buffer}[{_index(stmt.index, stmt.indirect)}]"
            op = pf.STORE_MODES[stmt.mode]
            return f"{mask}{element} = {OPS[op].format(element, stmt.value) if op else stmt.value};"
    raise AssertionError(f"{type(stmt).__name__} was refused")


def _index(index, indirect=()):
    """An index as C++; `@k` in it is the value called `indirect[k]`."""
    return pf.kit.c_index(index, {f"@{k}": f"int({name})" for k, name in enumerate(indirect)})
