"""Kernels of a device in a model that runs without Python: their code, and functions that launch them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polyfuse.plugin.host_library import DeviceCode, DeviceKernel
from polyfuse_cpp.native_host.model_sizes import SizePrinter, quoted

_LINE = 64
"""Bytes of code in a line of text."""


def launch_symbol(position: int) -> str:
    """The function that launches a kernel, by its position in the library."""
    return f"launch_{position}"


def kernel_tables(kernels: Sequence[DeviceKernel]) -> str:
    """`device_kernels` with their code, as ``model/device.h`` has them. Shared code is there once."""
    lines: list[str] = []
    known: dict[bytes, str] = {}
    rows = []
    for position, kernel in enumerate(kernels):
        for code in kernel.codes:
            if code.code not in known:
                known[code.code] = f"code_{len(known)}"
                lines.append(f"alignas(64) const char {known[code.code]}[] =\n{_literal(code.code)};")
        codes = ", ".join(_row(code, known[code.code]) for code in kernel.codes)
        lines.append(f"const device_code codes_{position}[] = {{{codes}}};")
        rows.append(
            f"{{{quoted(kernel.name)}, {quoted(kernel.symbol)}, {kernel.cluster}, {int(kernel.cooperative)},"
            f" {len(kernel.codes)}, codes_{position}}}"
        )
    lines.append(f"enum {{ device_kernel_count = {len(kernels)} }};")
    lines.append(f"const device_kernel device_kernels[] = {{{', '.join(rows) or '{}'}}};")
    return "namespace {\n" + "\n".join(lines) + "\n}  // namespace\n"


def launch_functions(kernels: Sequence[DeviceKernel]) -> str:
    """A function for each kernel that takes what the host program passes."""
    return "namespace {\n" + "\n".join(_launch(i, k) for i, k in enumerate(kernels)) + "}  // namespace\n"


def _row(code: DeviceCode, name: str) -> str:
    numbers = (code.threads, code.shared, int(code.starts_early), code.scratch, code.scratch_align)
    return f"{{{code.chip}, {name}, {len(code.code)}, {', '.join(map(str, numbers))}}}"


def _literal(code: bytes) -> str:
    """Bytes as a text of C, which compilers read much faster than a list of numbers."""
    rows = (code[start : start + _LINE] for start in range(0, len(code), _LINE))
    return "\n".join(f'"{"".join(f"{chr(92)}{byte:03o}" for byte in row)}"' for row in rows) or '""'


def _launch(position: int, kernel: DeviceKernel) -> str:
    numbers = [name for name, kind in kernel.arguments if kind != "ptr"]
    sizes = SizePrinter(numbers)
    variables = {name: f"a{i}" for i, (name, _) in enumerate(kernel.arguments)}
    kinds = [
        f"{'void*' if kind == 'ptr' else 'int64_t'} {variables[name]}" for name, kind in kernel.arguments
    ]
    given = ", ".join((*(variables[name] for name in numbers), "0"))
    lines = [f"const int64_t s[] = {{{given}}};", "(void)s;"]
    for name, kind in kernel.arguments:
        if kind == "i32":
            lines.append(f"int32_t {variables[name]}_short = (int32_t){variables[name]};")
            reason = quoted(f"{name} fits in 32 bits")
            lines.append(
                f"if ({variables[name]}_short != {variables[name]} && !refused({position}, {reason})) return;"
            )
    if kernel.guard:
        test = sizes.text(kernel.guard)
        lines.append(f"if (!{test} && !refused({position}, {quoted(kernel.guard)})) return;")
    lines.append("void *zeroed = nullptr, *scratch = nullptr, *nothing = nullptr;")
    addresses = ", ".join(f"&{value}" for value in _values(kernel, variables))
    lines.append(f"void* parameters[] = {{{addresses}}};")
    grid = ", ".join(sizes.text(extent) for extent in kernel.grid)
    lines.append(f"const int64_t grid[] = {{{grid}}};")
    words = sizes.text(kernel.zeroed)
    lines.append(f"start({position}, grid, parameters, {words}, &zeroed, &scratch);")
    lines.append("(void)nothing;")
    body = "".join(f"  {line}\n" for line in lines)
    return f"void {launch_symbol(position)}({', '.join(kinds)}) {{\n{body}}}\n"


def _values(kernel: DeviceKernel, variables: dict[str, str]) -> Iterable[str]:
    """The variables that hold the parameters of the code."""
    kinds = dict(kernel.arguments)
    for name in kernel.parameters:
        if name in variables:
            yield f"{variables[name]}_short" if kinds[name] == "i32" else variables[name]
        else:
            yield name or "nothing"
