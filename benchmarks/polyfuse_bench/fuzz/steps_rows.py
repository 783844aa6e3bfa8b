"""Steps along dimensions: reductions, normalisations, scans, sorts, and matmuls with what
surrounds them.
"""

from __future__ import annotations

from polyfuse_bench.fuzz.maker import Maker

__all__ = ["STEPS"]

_SUMS = ("sum", "mean", "sum", "mean", "logsumexp")
_EXTREMES = ("amax", "amin")


def reduction(m: Maker) -> None:
    i = m.pick(lambda n: len(m.shape(n)) > 0)
    if i is None:
        return
    m.add(*_reduced(m, i))


def _reduced(m: Maker, i: str) -> tuple[str, tuple[str, ...]]:
    """A reduction of a value, and what it reads."""
    rank = len(m.shape(i))
    keep = m.chance(0.4)
    dims = sorted(m.random.sample(range(rank), 1 if m.chance(0.75) else m.random.randint(1, rank)))
    over = dims[0] if len(dims) == 1 else tuple(dims)
    length = 1
    for d in dims:
        length *= m.shape(i)[d]
    kind = m.random.random()
    if kind < 0.6 or length == 1:
        return f"{i}.{m.random.choice(_SUMS)}({over}, keepdim={keep})", (i,)
    if kind < 0.75:
        return f"{i}.{m.random.choice(_EXTREMES)}({over}, keepdim={keep})", (i,)
    if kind < 0.85:
        return f"torch.var({i}, {over}, keepdim={keep})", (i,)
    if kind < 0.92:
        return f"torch.linalg.vector_norm({i} + 0.1, 2, {over}, keepdim={keep})", (i,)
    if kind < 0.96:
        return f"({i}.abs() * 0.1 + 0.9).prod({dims[0]}, keepdim={keep})", (i,)
    return f"torch.std({i}, {over}, keepdim={keep}) + 0.1", (i,)


def extremes(m: Maker) -> None:
    """An extreme is as exact as its operand, and may be compared afterwards."""
    i = m.pick(lambda n: len(m.shape(n)) > 0)
    if i is not None:
        dim, keep = m.random.randrange(len(m.shape(i))), m.chance(0.5)
        m.add(f"{i}.{m.random.choice(_EXTREMES)}({dim}, keepdim={keep})", (i,), rounds=False)


def several_reductions(m: Maker) -> None:
    """Reductions of one value over different dimensions."""
    i = m.pick(lambda n: len(m.shape(n)) >= 2)
    if i is not None:
        for _ in range(m.random.randint(2, 3)):
            text, operands = _reduced(m, i)
            m.add(text, operands, sums=operands)


def truth_values(m: Maker) -> None:
    """Reductions of integers and Booleans, and where the largest element is."""
    i = m.pick(lambda n: m.dtype(n) in ("b8", "i64", "i32") and len(m.shape(n)) > 0, floats=False)
    if i is not None:
        dim = m.random.randrange(len(m.shape(i)))
        kinds = ("sum({})", "any({})", "all({})", "to(i64).cumsum({})", "to(i64).amax({})")
        m.add(f"{i}." + m.random.choice(kinds).format(dim), (i,), rounds=False)


def largest(m: Maker) -> None:
    i = m.pick(lambda n: m.is_exact(n) and m.dtype(n) == "f32" and len(m.shape(n)) > 0)
    if i is not None and len(set(m.tensor(i).flatten().tolist())) == m.tensor(i).numel():
        dim, keep = m.random.randrange(len(m.shape(i))), m.chance(0.4)
        kinds = (
            f"{i}.argmax({dim}, keepdim={keep})",
            f"{i}.argmin({dim}, keepdim={keep})",
            f"{i}.argsort({dim})",
        )
        m.add(m.random.choice(kinds), (i,), rounds=False)


def softmax(m: Maker) -> None:
    i = m.pick(lambda n: len(m.shape(n)) > 0)
    if i is None:
        return
    dim = -1 if m.chance(0.6) else m.random.randrange(len(m.shape(i)))
    kind = m.random.random()
    if kind < 0.6:
        m.add(f"torch.softmax({i}, {dim})", (i,), sums=(i,))
    elif kind < 0.8:
        m.add(f"torch.log_softmax({i}, {dim})", (i,), sums=(i,))
    else:
        flags = m.flags(m.shape(i))
        m.add(f"torch.softmax({i}.masked_fill(~{flags}, -float('inf')), {dim})", (i, flags), sums=(i,))


def normalisation(m: Maker) -> None:
    i = m.pick(lambda n: len(m.shape(n)) >= 2)
    if i is None:
        return
    size, kind = m.shape(i)[-1], m.random.random()
    dtype = m.dtype(i)
    if kind < 0.45:
        more = ""
        operands = [i]
        if m.chance(0.6):
            operands += [m.of_shape((size,), dtype), m.of_shape((size,), dtype)]
            more = ", " + ", ".join(operands[1:])
        source = i
        if m.chance(0.4):
            other = m.of_shape(m.shape(i), dtype)
            operands.append(other)
            source = f"{i} + {other}"
        m.add(f"F.layer_norm({source}, ({size},){more})", operands, sums=(i,))
    elif kind < 0.75:
        weight = m.of_shape((size,), dtype)
        text = f"{i} * torch.rsqrt({i}.to(f32).square().mean(-1, keepdim=True) + 1e-5).to({dtype}) * {weight}"
        m.add(text, (i, weight), sums=(i,))
    elif kind < 0.9:
        m.add(
            f"{i} / ({i}.abs().sum({m.random.randrange(len(m.shape(i)))}, keepdim=True) + 1)", (i,), sums=(i,)
        )
    else:
        mean = m.random.randrange(len(m.shape(i)))
        m.add(
            f"({i} - {i}.mean({mean}, keepdim=True)) / ({i}.std({mean}, keepdim=True) + 0.5)", (i,), sums=(i,)
        )


def scan(m: Maker) -> None:
    i = m.pick(lambda n: len(m.shape(n)) > 0)
    if i is not None:
        dim = m.random.randrange(len(m.shape(i)))
        texts = (
            f"torch.cumsum({i}, {dim})",
            f"torch.cumsum({i} * 0.1, {dim})",
            f"torch.cumprod({i}.abs() * 0.1 + 0.9, {dim})",
            f"torch.logcumsumexp({i}, {dim})",
        )
        m.add(m.random.choices(texts, (4, 3, 1, 1))[0], (i,), sums=(i,))


def sort(m: Maker) -> None:
    i = m.pick(lambda n: len(m.shape(n)) > 0)
    if i is not None:
        dim = m.random.randrange(len(m.shape(i)))
        size = m.shape(i)[dim]
        texts = (
            f"torch.sort({i}, dim={dim}).values",
            f"torch.sort({i}, dim={dim}, descending=True, stable=True).values",
            f"torch.topk({i}, {m.random.randint(1, size)}, dim={dim}).values",
            f"torch.cummax({i}, {dim}).values",
        )
        m.add(m.random.choice(texts), (i,), rounds=False)


# Matmuls.


def product(m: Maker) -> None:
    i = m.pick(lambda n: len(m.shape(n)) in (2, 3))
    if i is None:
        return
    dtype = m.dtype(i)
    inner, outer = m.shape(i)[-1], m.random.choice(m.dims)
    i = _with_prologue(m, i)
    kind = m.random.random()
    if kind < 0.4:
        weight = m.of_shape((outer, inner), dtype, new=0.8)
        operands, bias = [i, weight], ""
        if m.chance(0.6):
            operands.append(m.of_shape((outer,), dtype, new=0.7))
            bias = f", {operands[-1]}"
        made = m.add(f"F.linear({i}, {weight}{bias}) * {_scale(inner)}", operands, sums=(i, weight))
    elif kind < 0.7:
        lead = m.shape(i)[:-2] if m.chance(0.5) else ()
        weight = m.of_shape((*lead, inner, outer), dtype, new=0.6)
        made = m.add(f"({i} @ {weight}) * {_scale(inner)}", (i, weight), sums=(i, weight))
    elif kind < 0.8:
        made = m.add(f"({i} @ {i}.transpose(-1, -2)) * {_scale(inner)}", (i,), sums=(i,))
    elif kind < 0.9 and len(m.shape(i)) == 2:
        weight, bias = m.of_shape((inner, outer), dtype), m.of_shape((outer,), dtype)
        made = m.add(
            f"torch.addmm({bias}, {i}, {weight}, alpha={_scale(inner)})", (i, weight, bias), sums=(i, weight)
        )
    else:
        weight = m.of_shape((outer, m.shape(i)[-2]), dtype)
        made = m.add(f"({weight} @ {i}) * {_scale(m.shape(i)[-2])}", (i, weight), sums=(i, weight))
    if made:
        _epilogue(m, made[0])


def _with_prologue(m: Maker, i: str) -> str:
    if m.chance(0.3):
        text = m.random.choice(("F.silu({})", "{} * 0.5", "torch.relu({})", "{} + 1"))
        return (m.add(text.format(i), (i,)) or (i,))[0]
    return i


def _epilogue(m: Maker, name: str) -> None:
    """Bias, activation, residual, a transposed form: some of them, in turn."""
    for _ in range(m.random.choice((0, 1, 1, 2, 3))):
        kind, sizes, dtype = m.random.random(), m.shape(name), m.dtype(name)
        if kind < 0.25:
            other = m.of_shape(sizes[-1:], dtype, new=0.8)
            found = m.add(f"{name} + {other}", (name, other))
        elif kind < 0.5:
            text = m.random.choice(("F.gelu({})", "F.silu({})", "torch.relu({})", "torch.tanh({})"))
            found = m.add(text.format(name), (name,))
        elif kind < 0.75:
            other = m.of_shape(sizes, new=0.4)
            found = m.add(f"{name} + {other}", (name, other))
        else:
            found = m.add(f"{name}.transpose(-1, -2)", (name,), rounds=False)
        if found:
            name = found[0]


def _scale(inner: int) -> float:
    return round(0.7 / max(1, inner) ** 0.5, 4)


STEPS = {
    reduction: 4,
    extremes: 2,
    several_reductions: 3,
    truth_values: 1,
    largest: 1,
    softmax: 4,
    normalisation: 5,
    scan: 3,
    sort: 1,
    product: 6,
}
