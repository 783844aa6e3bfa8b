"""A small backend: f32 arithmetic as Python loops."""

import numpy as np

from polyfuse.plugin import (
    Backend,
    Compute,
    DType,
    KernelBuildError,
    Load,
    Manifest,
    No,
    Pointwise,
    Source,
    Store,
    UnsupportedError,
    Yes,
    axis_name,
    hookimpl,
    python_text,
    walk,
)

OPS = {"add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "neg": "-{}"}


@hookimpl
def polyfuse_manifest():
    return Manifest("minimal", "0.1.0", "polyfuse-minimal", (2, 0), ("cpu",), load="polyfuse_minimal:Minimal")


class Minimal(Backend):
    spawns_compiler = False

    def claims(self, node):
        if not isinstance(node, Pointwise):
            return No("only pointwise nodes")
        if not all(isinstance(size, int) for size in node.sizes):
            return No("only static sizes")
        known = all(e.dtype == DType.f32 and e.op in (*OPS, "load") for e in walk(*node.expressions()))
        return Yes() if known else No("only f32 arithmetic")

    def emit(self, kernel, config=None):
        lines = [f"def {Source.SYMBOL}({', '.join(arg.name for arg in kernel.args)}):"]
        for axis, size in zip(kernel.axes, kernel.sizes):
            lines.append(" " * len(lines) + f"for {axis_name(axis)} in range({python_text(size)}):")
        indent = " " * len(lines)
        for section in kernel.sections:
            lines += [indent + statement(stmt) for stmt in section.body]
        return Source(kernel.name, "\n".join(lines) + "\n", "py")

    def build(self, sources, folder):
        text = "\n".join(source.rendered() for source in sources)
        try:
            compile(text, "unit.py", "exec")
        except SyntaxError as error:
            raise KernelBuildError(f"the source is malformed: {error}", "report it") from error
        (folder / "unit.py").write_text(text)

    def load(self, folder):
        names = {}
        exec((folder / "unit.py").read_text(), names)
        return {name.removeprefix("k_"): flat(f) for name, f in names.items() if name.startswith("k_")}


def statement(stmt):
    match stmt:
        case Load(mask=None):
            return f"{stmt.target} = {stmt.buffer}[{python_text(stmt.index)}]"
        case Compute():
            return f"{stmt.target} = {OPS[stmt.op].format(*stmt.args)}"
        case Store(mask=None):
            return f"{stmt.buffer}[{python_text(stmt.index)}] = {stmt.value}"
        case _:
            raise UnsupportedError(f"{stmt.op} has no text here", "let another backend take the node")


def flat(function):
    """Kernels index memory from the first element of a tensor to the end of its storage."""

    def memory(x):
        return x.as_strided((x.untyped_storage().nbytes() // 4 - x.storage_offset(),), (1,)).numpy()

    def launch(*args):
        with np.errstate(all="ignore"):  # NumPy warns of infinities, which torch takes as they are
            function(*map(memory, args))

    return launch
