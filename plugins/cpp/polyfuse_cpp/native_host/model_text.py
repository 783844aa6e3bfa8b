"""A model that runs without Python as one C++ unit: kernels (of a device, their code and functions that
launch them), host program, and the tables that ``model/model.h`` reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources

from polyfuse.base.errors import UnsupportedError
from polyfuse.plugin import Source
from polyfuse.plugin.host import Constant, Operand
from polyfuse.plugin.host_library import (
    DeviceCode,
    DeviceKernel,
    HostArgument,
    HostDevice,
    HostLibrary,
    HostResult,
    HostSymbol,
    SizeText,
)
from polyfuse_cpp.isa import Isa
from polyfuse_cpp.native_host.model_requests import dtype_code, requests_text
from polyfuse_cpp.native_host.model_sizes import SizePrinter, quoted
from polyfuse_cpp.native_host.text import host_header, host_text

LIBRARY_LANGUAGE = "c++ model"
"""The language of a `Source` that is a whole model."""

_PUBLIC_HEADERS = ("polyfuse_model.h", "polyfuse_package.h")
"""What callers of a model include."""

_MAX_RANK = 16
"""As in the header."""

_PROGRAM = "program"
"""What the host program is called in its unit, of which it is no public part."""

_PROCESSOR_NAMES = {"bmi1": "bmi"}
"""Abilities that the compiler has other names for than Linux; those without a name come with others."""

_NAMED = ("avx512f", "avx512dq", "avx512bw", "avx512vl", "avx2", "fma", "bmi1")


@cache
def _header(name: str) -> str:
    """The text of one file of ``model/``."""
    return resources.files("polyfuse_cpp").joinpath("model", name).read_text(encoding="utf-8")


def library_text(library: HostLibrary, head: str, kernels: str, isa: Isa, dots: Sequence[str]) -> str:
    """The whole unit of a model that computes on the CPU.

    Args:
        library: what to print.
        head, kernels: the vector layer and the kernels.
        isa: which the kernels are generated for.
        dots: macros of instructions beyond it that they may use.

    Raises:
        UnsupportedError: something in it needs Python.
    """
    return "\n".join(
        (
            host_header("host"),
            _header("polyfuse_model.h"),
            host_header("memory"),
            host_header("program"),
            _header("message.h"),
            _header("on_cpu.h"),
            _header("tensors.h"),
            _header("operators.h") if any(r.kind == "operator" for r in library.program.requests) else "",
            # what these declare of the C library, compilers want to know from its own headers before
            head,
            "#pragma GCC visibility push(hidden)",
            kernels,
            _model_text(library, _Tables(library).text(isa, dots)),
        )
    )


def device_library_text(library: HostLibrary, device: HostDevice, isa: Isa) -> str:
    """The whole unit of a model that computes on a device.

    Args:
        library: what to print; its host program launches by the functions that are printed for the device.
        device: where.
        isa: which the unit is compiled for.

    Raises:
        UnsupportedError: something in it needs Python.
    """
    launched = [replace(call, symbol=launch_symbol(i)) for i, call in enumerate(library.program.kernels)]
    library = replace(library, program=replace(library.program, kernels=tuple(launched)))
    return "\n".join(
        (
            host_header("host"),
            _header("polyfuse_model.h"),
            host_header("program"),
            _header("message.h"),
            _header("device.h"),
            device.runtime,
            "#pragma GCC visibility push(hidden)",
            kernel_tables(library.launches),
            f"namespace {{ const char device_type[] = {quoted(device.type)}; }}",
            _header("on_device.h"),
            _header("tensors.h"),
            launch_functions(library.launches),
            _model_text(library, _Tables(library).text(isa, ())),
        )
    )


def _model_text(library: HostLibrary, tables: str) -> str:
    """The host program and what runs it."""
    printed = host_text(library.program).replace(f'extern "C" int {Source.SYMBOL}', f"int {_PROGRAM}")
    device = library.device.type if library.device is not None else ""
    return "\n".join(
        (
            f"namespace {{\n{printed}}}\n",
            tables,
            _header("model.h"),
            requests_text(library.program, library.constants, device),
        )
    )


def public_headers() -> dict[str, str]:
    """The headers that callers of a model include, by name."""
    return {name: _header(name) for name in _PUBLIC_HEADERS}


class _Tables:
    """Prints what is known of one model."""

    def __init__(self, library: HostLibrary) -> None:
        self._library = library
        self._given = tuple(a for a in library.arguments if a.kind != "fixed")
        self._positions = {id(argument): i for i, argument in enumerate(self._given)}
        self._symbols = {symbol.name: symbol for symbol in library.symbols}
        self._sizes = SizePrinter(tuple(self._symbols))
        self._found: dict[str, None] = {}

    def text(self, isa: Isa, dots: Sequence[str]) -> str:
        """All tables and functions."""
        library = self._library
        end = max((w.offset + w.bytes for w in library.weights), default=0)
        counts = {
            "argument_count": len(self._given),
            "input_count": len(library.inputs),
            "weight_count": len(library.weights),
            "constant_count": len(library.program.constant_keys),
            "symbol_count": len(self._symbols),
            "word_count": len(library.program.results),
            "result_count": len(library.results),
        }
        kinds = "".join("r" if isinstance(r, str) else "i" for r in library.program.results)
        lines = [
            f"enum {{ {', '.join(f'{name} = {value}' for name, value in counts.items())} }};",
            f"const char* const model_name = {quoted(library.name)};",
            f"const char weight_member[] = {quoted(library.member)};",
            f"const int64_t weight_bytes = {end};",
            f"const bool takes_turns = {str(any(w.mutable for w in library.weights)).lower()};",
            f"const char word_kinds[] = {quoted(kinds)};",
            *self._weights(),
            *self._inputs(),
            *self._descriptions("input", [_described(a) for a in self._given]),
            *self._descriptions("output", [_described(r) for r in library.results]),
            *self._results(),
            _rows("void* const", "kernel_rows", (f"(void*)&{k.symbol}" for k in library.program.kernels)),
            _rows(
                "const int32_t",
                "constant_rows",
                (str(library.constants[key]) for key in library.program.constant_keys),
            ),
            "int answer(void* context, int32_t which, const pf_word* a, pf_word* b);",
            *self._find_sizes(),
            *self._find_strides(),
            *_lacking(isa, dots),
        ]
        return "namespace {\n" + "\n".join(lines) + "\n}  // namespace\n"

    def _weights(self) -> Iterable[str]:
        rows = []
        for i, weight in enumerate(self._library.weights):
            _check_rank(weight.name, weight.size)
            yield _rows("const int64_t", f"weight_sizes_{i}", map(str, weight.size))
            yield _rows("const int64_t", f"weight_strides_{i}", map(str, weight.stride))
            copies = ", ".join(str(own).lower() for own in (weight.mutable, weight.packed))
            rows.append(
                f"{{{dtype_code(weight.dtype)}, {len(weight.size)}, weight_sizes_{i}, weight_strides_{i},"
                f" {weight.offset}, {weight.bytes}, {copies}}}"
            )
        yield _rows("const weight_row", "weight_rows", rows)

    def _inputs(self) -> Iterable[str]:
        rows = []
        for (origin, position), item in zip(self._library.inputs, self._library.program.inputs, strict=True):
            letter = "w"
            if origin == "argument":
                argument = self._library.arguments[position]
                letter = {"tensor": "t", "number": "i"}.get(argument.kind, "f")
                position = self._positions.get(id(argument), 0)
            rows.append(f"{{'{letter}', {position}, {item.alignment}}}")
        yield _rows("const input_row", "input_rows", rows)

    def _descriptions(
        self, kind: str, items: Sequence[tuple[str, str, tuple[SizeText, ...], bool]]
    ) -> Iterable[str]:
        rows = []
        for i, (name, dtype, size, written) in enumerate(items):
            _check_rank(name, size)
            stem = f"{kind}_{i}"
            lowest, highest = zip(*map(self._bounds, size), strict=True) if size else ((), ())
            yield _rows("const char* const", f"{stem}_sizes", (quoted(str(n)) for n in size))
            yield _rows("const int64_t", f"{stem}_lowest", lowest)
            yield _rows("const int64_t", f"{stem}_highest", highest)
            rows.append(
                f"{{{quoted(name)}, {dtype}, {len(size)}, {int(written)}, {stem}_sizes, {stem}_lowest,"
                f" {stem}_highest}}"
            )
        yield _rows("const pf_description", f"{kind}_descriptions", rows)

    def _bounds(self, size: SizeText) -> tuple[str, str]:
        if isinstance(size, int):
            return str(size), str(size)
        symbol = self._symbols.get(size)
        if symbol is None:
            return "0", "-1"
        return str(symbol.lower or 0), str(-1 if symbol.upper is None else symbol.upper)

    def _results(self) -> Iterable[str]:
        rows = []
        for result, value in zip(self._library.results, self._library.program.returns, strict=True):
            kind, position = "n", 0
            if isinstance(value, Operand):
                position = value.position
                kind = "r" if isinstance(self._library.program.results[position], str) else "i"
            elif isinstance(value, Constant):
                kind, position = "c", self._library.constants[value.key]
            elif result.kind == "value":
                kind = "v"
            dtype, bits = _value(result)
            rows.append(f"{{'{kind}', {position}, {dtype}, {{{bits}}}}}")
        yield _rows("const result_row", "result_rows", rows)

    # Sizes.

    def _find_sizes(self) -> Iterable[str]:
        """The function that finds symbols in the sizes of arguments, and compares all sizes."""
        yield "int find_sizes(const pf_tensor* in, int64_t* s) {"
        rows = [
            (argument, dim, size, f"in[{i}].sizes[{dim}]" if argument.kind == "tensor" else _number_of(i))
            for i, argument in enumerate(self._given)
            for dim, size in enumerate(argument.size)
        ]
        for _, _, size, given in rows:
            if isinstance(size, str) and size in self._symbols and size not in self._found:
                self._found[size] = None
                yield f"  {self._sizes.element(size)} = {given};"
        for argument, dim, size, given in rows:
            unknown = [name for name in self._sizes.names(size) if name not in self._found]
            if len(unknown) == 1:
                self._found[unknown[0]] = None
                position = self._sizes.element(unknown[0])
                function = f"[&](int64_t x) {{ {position} = x; return {self._sizes.text(size)}; }}"
                wrong = self._wrong(argument, dim, size, given)
                yield f"  if (!solve({function}, {given}, &{position})) {wrong}"
        for argument, dim, size, given in rows:
            if size not in self._found:
                wrong = self._wrong(argument, dim, size, given)
                yield f"  if ({given} != {self._known(size)}) {wrong}"
        for symbol in self._symbols.values():
            yield from self._range(symbol, rows)
        for text in self._library.conditions:
            said = f'fail("%s was compiled for sizes of which %s", model_name, {quoted(text)})'
            yield f"  if (!{self._known(text)}) return {said};"
        yield "  return 0;\n}"

    def _range(
        self, symbol: HostSymbol, rows: Sequence[tuple[HostArgument, int, SizeText, str]]
    ) -> Iterable[str]:
        name, lower, upper = symbol.name, symbol.lower, symbol.upper
        if name not in self._found:
            return
        position = self._sizes.element(name)
        tests = [f"{position} < {self._sizes.text(lower)}"] if lower is not None else []
        tests += [f"{position} > {self._sizes.text(upper)}"] if upper is not None else []
        if not tests:
            return
        argument, dim, _, given = next(row for row in rows if name in self._sizes.names(row[2]))
        bounds = f"{lower or 0}..{'' if upper is None else upper}"
        text = f"%s: size {dim} of %s is %lld, and {name} must be in {bounds}"
        values = f"model_name, {quoted(argument.name)}, (long long){given}"
        yield f"  if ({' || '.join(tests)}) return fail({quoted(text)}, {values});"

    def _wrong(self, argument: HostArgument, dim: int, size: SizeText, given: str) -> str:
        what = f"size {dim} of %s" if argument.kind == "tensor" else "%s"
        text = quoted(f"%s: {what} is %lld where %s was compiled")
        return (
            f"return fail({text}, model_name, {quoted(argument.name)}, (long long){given},"
            f" {quoted(str(size))});"
        )

    def _known(self, size: SizeText) -> str:
        """A text of which all symbols are found."""
        unknown = [name for name in self._sizes.names(size) if name not in self._found]
        if unknown:
            raise UnsupportedError(f"the size {unknown[0]} is no size of an argument")
        return self._sizes.text(size)

    def _find_strides(self) -> Iterable[str]:
        yield "void find_strides(const int64_t* s, int64_t (*strides)[PF_MAX_RANK]) {"
        for i, argument in enumerate(self._given):
            for dim, stride in enumerate(argument.stride):
                yield f"  strides[{i}][{dim}] = {self._known(stride)};"
        yield "}"


def _described(item: HostArgument | HostResult) -> tuple[str, str, tuple[SizeText, ...], bool]:
    """Name, type in C, sizes, and whether it is written to."""
    if item.kind == "tensor":
        return item.name, dtype_code(item.dtype), item.size, isinstance(item, HostArgument) and item.mutated
    if isinstance(item, HostResult) and item.kind == "value":
        return item.name, _value(item)[0], (), False
    return item.name, "PF_NONE" if item.kind == "none" else "PF_INT64", (), False


def _value(result: HostResult) -> tuple[str, str]:
    """Type and bytes of a value that is the same in every call."""
    if result.kind != "value":
        return "PF_NONE", "0"
    value = result.value
    if isinstance(value, bool):
        return "PF_BOOL", str(int(value))
    code, packed = ("PF_FLOAT64", "d") if isinstance(value, float) else ("PF_INT64", "q")
    return code, ", ".join(map(str, struct.pack(f"={packed}", value)))


def _number_of(position: int) -> str:
    return f"*(const int64_t*)in[{position}].data"


def _check_rank(name: str, size: Sequence[SizeText]) -> None:
    if len(size) > _MAX_RANK:
        raise UnsupportedError(f"{name} has {len(size)} dimensions, and at most {_MAX_RANK} are possible")


def _rows(kind: str, name: str, rows: Iterable[str]) -> str:
    """A table, which C wants to have at least one row."""
    return f"{kind} {name}[] = {{{', '.join(rows) or '{}'}}};"


def _lacking(isa: Isa, dots: Sequence[str]) -> Iterable[str]:
    """The function that names what the CPU lacks, and what makes the one that calls it run on any."""
    tested = [name for name in _NAMED if name in isa.cpu_flags]
    tested += [{"PF_DOT_BF16": "avx512bf16", "PF_DOT_BYTES": "avx512vnni"}[d] for d in dots if d != "PF_AMX"]
    usual = "no-avx" if tested else "+nosve" if "sve" in isa.cpu_flags else ""
    plain = f'__attribute__((noinline, target("{usual}")))' if usual else "__attribute__((noinline))"
    yield f"#define PF_ANY_CPU {plain}"
    yield "PF_ANY_CPU const char* lacking() {"
    for name in tested:
        feature = _PROCESSOR_NAMES.get(name, name)
        yield f'  if (!__builtin_cpu_supports("{feature}")) return "{name}";'
    if "sve" in isa.cpu_flags:
        # Linux tells a process the length of its vectors in bytes, or an error
        yield f'  if ((syscall(167, 51) & 0xffff) != {isa.register_bytes}) return "{isa.name}";'
    if "PF_AMX" in dots:
        # Linux lets a process use the matrix registers that asks for them
        yield '  if (syscall(158, 0x1023, 18)) return "matrix registers";'
    yield "  return nullptr;\n}"


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
