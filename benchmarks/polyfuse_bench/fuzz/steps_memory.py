"""Steps that change where values stand: views, parts and their joining, gathers and scatters."""

from __future__ import annotations

from polyfuse_bench.fuzz.maker import Maker

__all__ = ["STEPS"]


def view(m: Maker) -> None:
    i = m.pick(lambda n: len(m.shape(n)) > 0, floats=m.chance(0.95))
    if i is None:
        return
    sizes = m.shape(i)
    rank = len(sizes)
    dim, other = m.random.randrange(rank), m.random.randrange(rank)
    size = sizes[dim]
    start = m.random.randrange(size)
    length = m.random.randint(1, size - start)
    order = ", ".join(map(str, m.random.sample(range(rank), rank)))
    texts = [
        *(f"{i}.transpose({dim}, {other})",) * 4,
        *(f"{i}.permute({order})",) * 2,
        f"{i}.narrow({dim}, {start}, {length})",
        f"{i}.unsqueeze({dim})",
        f"{i}.select({dim}, {start})",
        f"{i}.flatten()",
        f"{i}.reshape(-1)",
        f"{i}.contiguous()",
        f"{i}.unsqueeze(0).expand(2, {', '.join('-1' for _ in sizes)})",
        f"{i}[{', '.join('::2' if d == dim else ':' for d in range(rank))}]",
        f"{i}.reshape(-1, {sizes[-1]})",
        f"{i}.unfold({dim}, {max(1, size // 2)}, {max(1, size // 3)})",
    ]
    if 1 in sizes:
        texts.append(f"{i}.squeeze({sizes.index(1)})")
    if rank >= 2:
        texts += [f"{i}.diagonal()", f"{i}.flatten(0, 1)", f"{i}.transpose(-1, -2)", f"{i}.transpose(-1, -2)"]
    for factor in (2, 3, 4):
        if size % factor == 0:
            parts = [*sizes[:dim], factor, size // factor, *sizes[dim + 1 :]]
            texts.append(f"{i}.reshape({', '.join(map(str, parts))})")
    m.add(m.random.choice(texts), (i,), rounds=False)


def moved(m: Maker) -> None:
    """Copies with the elements elsewhere."""
    i = m.pick(lambda n: len(m.shape(n)) > 0)
    if i is None:
        return
    sizes = m.shape(i)
    dim = m.random.randrange(len(sizes))
    pads = ", ".join(str(m.random.randint(0, 3)) for _ in range(2 * m.random.randint(1, min(2, len(sizes)))))
    texts = [
        f"{i}.flip({dim})",
        f"torch.roll({i}, {m.random.randint(1, 5)}, {dim})",
        f"F.pad({i}, ({pads}))",
        f"F.pad({i}, ({pads}), value=0.5)",
        f"{i}.repeat_interleave(2, {dim})",
        f"{i}.repeat({', '.join(['2'] + ['1'] * (len(sizes) - 1))})",
    ]
    if len(sizes) >= 2:
        texts += [f"torch.tril({i})", f"torch.triu({i}, 1)"]
    m.add(m.random.choice(texts), (i,), rounds=False)


def parts(m: Maker) -> None:
    """Parts of a value, of which at least two are read again."""
    i = m.pick(lambda n: len(m.shape(n)) > 0 and max(m.shape(n)) > 1)
    if i is None:
        return
    dim = m.random.choice([d for d, s in enumerate(m.shape(i)) if s > 1])
    size = m.shape(i)[dim]
    kind = m.random.random()
    if kind < 0.5 and size % 2 == 0:
        found = m.add(f"{i}.chunk(2, {dim})", (i,), rounds=False, results=2)
    else:
        first = m.random.randrange(1, size)
        found = m.add(f"{i}.split(({first}, {size - first}), {dim})", (i,), rounds=False, results=2)
    if len(found) == 2 and m.shape(found[0]) == m.shape(found[1]):
        one, other = found
        texts = (
            f"{one} * F.silu({other})",
            f"torch.sigmoid({one}) * {other}",
            f"torch.cat((-{other}, {one}), {dim})",
        )
        m.add(m.random.choice(texts), found)


def joining(m: Maker) -> None:
    i = m.pick(lambda n: len(m.shape(n)) > 0)
    if i is None:
        return
    dim = m.random.randrange(len(m.shape(i)))
    found = [i]
    for _ in range(m.random.randint(1, 2)):
        j = m.pick(lambda n: _alike_but(m.shape(i), m.shape(n), dim))
        if j is None or m.chance(0.3):
            j = m.input([m.random.choice(m.dims) if d == dim else s for d, s in enumerate(m.shape(i))])
        found.append(j)
    m.random.shuffle(found)
    same = len({m.dtype(n) for n in found}) == 1
    items = list(found)
    if m.chance(0.3):
        items[0] = m.random.choice(("{} * 2", "torch.tanh({})", "{}.transpose(0, 0)")).format(items[0])
        same = False
    kind = "stack" if len({m.shape(n) for n in found}) == 1 and m.chance(0.4) else "cat"
    m.add(f"torch.{kind}(({', '.join(items)}), {dim})", found, rounds=not same)


def gather(m: Maker) -> None:
    i = m.pick(lambda n: len(m.shape(n)) > 0)
    if i is None:
        return
    sizes = m.shape(i)
    dim = m.random.randrange(len(sizes))
    count = m.random.choice((1, 3, 5, *m.dims))
    kind = m.random.random()
    if kind < 0.35:
        table = m.table(sizes[dim], (count,), m.random.choice(("i64", "i64", "i32")))
        text = f"{i}.index_select({dim}, {table})"
    elif kind < 0.6:
        table = m.table(sizes[dim], [count if d == dim else s for d, s in enumerate(sizes)])
        text = f"{i}.gather({dim}, {table})"
    elif kind < 0.8:
        table = m.table(sizes[0], (count,) if m.chance(0.6) else (2, count))
        text = f"{i}[{table}]"
    elif len(sizes) == 2:
        table = m.table(sizes[0], (count,) if m.chance(0.6) else (2, count))
        text = f"F.embedding({table}, {i})"
    else:
        table = m.table(sizes[-1], (count,))
        text = f"{i}[..., {table}]"
    m.add(text, (i, table), rounds=False)


def scatter(m: Maker) -> None:
    """Writes at positions that data give: with each position once, where the last one would win."""
    i = m.pick(lambda n: len(m.shape(n)) > 0)
    if i is None:
        return
    sizes = m.shape(i)
    dim, dtype = m.random.randrange(len(sizes)), m.dtype(i)
    kind = m.random.random()
    if kind < 0.2:
        table = m.permutation(sizes[dim])
        source = m.of_shape(sizes, dtype)
        m.add(f"{i}.index_copy({dim}, {table}, {source})", (i, table, source), rounds=False)
        return
    count = m.random.randint(1, 6) if m.chance(0.5) else m.random.choice(m.dims)
    shape = [count if d == dim else s for d, s in enumerate(sizes)]
    source = m.of_shape(shape, dtype)
    if kind < 0.5:
        table = m.table(sizes[dim], (count,))
        m.add(f"{i}.index_add({dim}, {table}, {source})", (i, table, source), sums=(i, source))
    elif kind < 0.75:
        table = m.table(sizes[dim], shape)
        m.add(f"{i}.scatter_add({dim}, {table}, {source})", (i, table, source), sums=(i, source))
    elif kind < 0.85:
        table = m.table(sizes[dim], shape)
        m.add(f"{i}.scatter({dim}, {table}, 0.5)", (i, table), rounds=False)
    else:
        table = m.table(sizes[0], (count,))
        source = m.of_shape((count, *sizes[1:]), dtype)
        m.add(
            f"torch.index_put({i}, ({table},), {source}, accumulate=True)",
            (i, table, source),
            sums=(i, source),
        )


def scatter_in_place(m: Maker) -> None:
    i = m.pick(lambda n: m.writable(n) and len(m.shape(n)) > 0)
    if i is None:
        return
    sizes, dtype = m.shape(i), m.dtype(i)
    if m.chance(0.4):
        table = m.permutation(sizes[0])
        source = m.of_shape(sizes, dtype)
        m.overwrite(i, f"{i}.index_put_(({table},), {source})", (i, table, source), rounds=False)
        return
    count = m.random.randint(1, 8)
    table = m.table(sizes[0], (count,))
    source = m.of_shape((count, *sizes[1:]), dtype)
    m.overwrite(i, f"{i}.index_add_(0, {table}, {source})", (i, table, source), sums=(source,))


def _alike_but(one: tuple[int, ...], other: tuple[int, ...], dim: int) -> bool:
    return len(one) == len(other) and all(
        a == b for d, (a, b) in enumerate(zip(one, other, strict=True)) if d != dim
    )


STEPS = {
    view: 10,
    moved: 3,
    parts: 3,
    joining: 4,
    gather: 3,
    scatter: 3,
    scatter_in_place: 2,
}
