"""Steps that compute with values where they stand: pointwise operators, types, choices, writing in place."""

from __future__ import annotations

from polyfuse_bench.fuzz.maker import Maker

__all__ = ["STEPS"]

_ROUNDED = (
    "torch.sin({})",
    "torch.cos({})",
    "torch.tanh({})",
    "torch.sigmoid({})",
    "torch.exp({}.clamp(max=3))",
    "torch.exp(-{}.abs())",
    "torch.sqrt({}.abs() + 0.1)",
    "torch.rsqrt({}.abs() + 0.5)",
    "torch.log1p({}.abs())",
    "torch.reciprocal({}.abs() + 0.5)",
    "torch.erf({})",
    "torch.atan({})",
    "F.gelu({})",
    "F.gelu({}, approximate='tanh')",
    "F.silu({})",
    "F.softplus({})",
    "F.elu({})",
    "F.mish({})",
    "F.hardswish({})",
    "{} * {}",
    "{} * 0.5",
    "{} + 1",
    "1 - {}",
    "{} / 3",
    "{}.square()",
    "{}.to(f32).mul(0.7).to({}.dtype)",
)

_UNROUNDED = (
    "torch.relu({})",
    "{}.abs()",
    "-{}",
    "{}.clamp(-1, 1)",
    "{}.clamp(min=0.25)",
    "F.hardtanh({})",
    "{}.clone()",
)

_BINARY = (
    *("{} + {}",) * 5,
    *("{} * {}",) * 4,
    *("{} - {}",) * 3,
    "{} / ({}.abs() + 0.5)",
    "torch.atan2({}, {}.abs() + 0.1)",
    "torch.lerp({0}, {0} * 0.5, 0.3) + {1}",
    "torch.addcmul({}, {}, {}, value=0.5)",
    "torch.add({}, {}, alpha=2)",
    "torch.hypot({}.abs() + 0.1, {})",
    "torch.pow({}.abs() + 0.5, 1.5) + {}",
)

_BINARY_UNROUNDED = ("torch.maximum({}, {})", "torch.minimum({}, {})")

_COMPARISONS = ("<", ">", "<=", ">=", "==", "!=")


def unary(m: Maker) -> None:
    i = m.pick()
    if i is not None:
        unrounded = m.chance(0.25)
        text = m.random.choice(_UNROUNDED if unrounded else _ROUNDED)
        m.add(text.format(*(i,) * text.count("{}")), (i,), rounds=not unrounded)


def binary(m: Maker) -> None:
    i = m.pick()
    if i is None:
        return
    j = m.partner(i)
    if m.chance(0.3):
        i, j = j, i
    if m.chance(0.12):
        m.add(m.random.choice(_BINARY_UNROUNDED).format(i, j), (i, j), rounds=False)
        return
    text = m.random.choice(_BINARY)
    m.add(text.format(i, j, *(j,) * (text.count("{}") - 2)), (i, j))


def cast(m: Maker) -> None:
    i = m.pick()
    if i is None:
        return
    others = [t for t in (*m.palette, "f32") if t != m.dtype(i)]
    if others:
        widened = m.dtype(i) in ("bf16", "f16") and others[0] == "f32"
        m.add(f"{i}.to({others[0]})", (i,), rounds=not widened)


def residual(m: Maker) -> None:
    """What was made, added to what it was made of."""
    i = m.pick()
    if i is not None:
        inner = m.random.choice(
            ("torch.tanh({0} * 2)", "F.silu({0}) * {0}", "F.gelu({0})", "torch.relu({0} - 0.5)")
        )
        m.add(f"{i} + {inner.format(i)}", (i,))


def choice(m: Maker) -> None:
    """By a comparison of values that were never rounded, or by Booleans that are given."""
    i = m.pick()
    if i is None:
        return
    j = m.partner(i)
    exact = m.pick(lambda n: m.is_exact(n) and m.shape(n) == m.shape(i))
    if exact is not None and m.chance(0.5):
        condition = f"{exact} {m.random.choice(_COMPARISONS[:4])} {m.random.choice(('0', '0.3', '-0.5'))}"
        operands: tuple[str, ...] = (i, j, exact)
    else:
        condition = _flags_for(m, i)
        operands = (i, j, condition)
    kinds = (f"torch.where({condition}, {i}, {j})", f"torch.where({condition}, {i}, 0.25)")
    m.add(m.random.choice(kinds), operands, rounds=m.dtype(i) != m.dtype(j))


def masking(m: Maker) -> None:
    i = m.pick()
    if i is not None:
        flags = _flags_for(m, i)
        m.add(f"{i}.masked_fill({flags}, {m.random.choice(('0', '-1.5', '2'))})", (i, flags), rounds=False)


def _flags_for(m: Maker, name: str) -> str:
    """Booleans that broadcast with a value."""
    found = m.pick(lambda n: m.dtype(n) == "b8" and m.shape(n) == m.shape(name), floats=False)
    if found is not None and m.chance(0.7):
        return found
    sizes = [1 if m.chance(0.25) else s for s in m.shape(name)]
    return m.flags(sizes[m.random.randrange(len(sizes)) if sizes and m.chance(0.3) else 0 :])


def integers(m: Maker) -> None:
    """Arithmetic on integers and Booleans, which has to be right to the last bit."""
    i = m.pick(lambda n: not m.is_float(n), floats=False)
    if i is None or m.chance(0.3):
        i = m.table(m.random.choice((3, 7, 30)), m.sizes(), m.random.choice(("i64", "i32", "u8")))
    if m.dtype(i) == "b8":
        m.add(
            m.random.choice((f"~{i}", f"{i} ^ {i}.flip(0)", f"{i}.to(i64)", f"{i}.to(f32)")),
            (i,),
            rounds=False,
        )
        return
    texts = (
        f"{i} // 3",
        f"{i} % 4",
        f"{i} * 2 - 5",
        f"({i} >> 1) & 3",
        f"{i} ^ 5",
        f"{i} > 1",
        f"{i} == 2",
        f"{i}.to(f32)",
        f"{i}.to(f32) * 0.25",
        f"torch.bitwise_or({i}, 4)",
    )
    m.add(m.random.choice(texts), (i,), rounds=False)


def creation(m: Maker) -> None:
    """A value that the program makes by itself."""
    i = m.pick(lambda n: len(m.shape(n)) > 0)
    if i is None:
        return
    size = m.shape(i)[-1]
    # in float32 it is rounded otherwise than in eager mode, which is no error, but one beside float64
    line = "f64" if m.dtype(i) == "f64" else "f32"
    texts = (
        f"{i} + torch.arange({size}, device={i}.device).to({m.dtype(i)}) * 0.01",
        f"{i} * torch.full(({size},), 0.5, dtype={m.dtype(i)}, device={i}.device)",
        f"torch.zeros_like({i}) + {i}",
        f"torch.linspace(0, 1, {size}, dtype={line}, device={i}.device) * {i}",
    )
    m.add(m.random.choice(texts), (i,))


# Writing in place.

_OVER = (
    "{}.add_({})",
    "{}.mul_({})",
    "{}.sub_({})",
    "{}.copy_({})",
    "{}.add_({}, alpha=0.5)",
    "{}.addcmul_({}, {}, value=0.3)",
)

_OVER_ALONE = (
    "{}.mul_(0.5)",
    "{}.add_(1)",
    "{}.tanh_()",
    "{}.sigmoid_()",
    "{}.neg_()",
    "{}.relu_()",
    "{}.clamp_(-1, 1)",
    "{}.fill_(0.25)",
    "{}.zero_()",
    "F.silu({}, inplace=True)",
    "F.relu({}, inplace=True)",
)


def in_place(m: Maker) -> None:
    """Over a whole value: an input, an intermediate, or a view of one."""
    i = m.pick(m.writable)
    if i is None:
        return
    if m.chance(0.45):
        m.overwrite(i, m.random.choice(_OVER_ALONE).format(i), (i,))
        return
    j = m.pick(lambda n: _spreads(m, n, i) and not m.shares_memory(n, i))
    if j is None or m.chance(0.2):
        j = m.input(m.shape(i))
    text = m.random.choice(_OVER)
    if "addcmul_" in text and m.dtype(i) != m.dtype(j):
        return  # Dynamo makes of it a product that is rounded before it is promoted, whatever the backend
    m.overwrite(i, text.format(i, *(j,) * (text.count("{}") - 1)), (i, j))


def in_place_of_part(m: Maker) -> None:
    """Over a slice, a row, a diagonal or a transposed form of a value, in one statement."""
    i = m.pick(lambda n: m.writable(n) and len(m.shape(n)) > 0)
    if i is None:
        return
    dim = m.random.randrange(len(m.shape(i)))
    size = m.shape(i)[dim]
    start = m.random.randrange(size)
    stop = m.random.randrange(start, size) + 1
    views = [
        f"{i}.select({dim}, {start})",
        f"{i}.narrow({dim}, {start}, {stop - start})",
        f"{i}.transpose({dim}, 0)",
        f"{i}.unsqueeze(0)",
    ]
    if len(m.shape(i)) >= 2:
        views.append(f"{i}.diagonal()")
    view = m.random.choice(views)
    texts = (".mul_(2)", ".add_(1)", ".zero_()", ".fill_(0.5)", ".tanh_()")
    m.overwrite(i, view + m.random.choice(texts), (i,))


def clone_and_change(m: Maker) -> None:
    """A copy of which a part is written by another value."""
    i = m.pick(lambda n: len(m.shape(n)) > 0)
    if i is None:
        return
    made = m.add(f"{i}.clone()", (i,), rounds=False)
    if not made:
        return
    dim = m.random.randrange(len(m.shape(i)))
    start = m.random.randrange(m.shape(i)[dim])
    sizes = tuple(s for d, s in enumerate(m.shape(i)) if d != dim)
    j = m.of_shape(sizes, new=0.4)
    kind = m.random.choice(("copy_", "add_", "mul_"))
    m.overwrite(
        made[0], f"{made[0]}.select({dim}, {start}).{kind}({j})", (made[0], j), rounds=kind != "copy_"
    )


def _spreads(m: Maker, name: str, over: str) -> bool:
    """Whether one value broadcasts to the sizes of the other."""
    mine, wanted = m.shape(name), m.shape(over)
    if len(mine) > len(wanted):
        return False
    return all(a in (1, b) for a, b in zip(reversed(mine), reversed(wanted), strict=False))


STEPS = {
    unary: 7,
    binary: 9,
    cast: 4,
    residual: 4,
    choice: 2,
    masking: 1,
    integers: 1,
    creation: 1,
    in_place: 5,
    in_place_of_part: 3,
    clone_and_change: 2,
}
