"""A native host program as C++ text: one function over the plain C interface of ``host/host.h``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from polyfuse.base.names import Names
from polyfuse.plugin import HostProgram, Source
from polyfuse.plugin.host import (
    Address,
    BindSize,
    Discard,
    Drop,
    HostStep,
    MakeRequest,
    OffsetAddress,
    Quiet,
    Raise,
    Reserve,
    Run,
)
from polyfuse.symbolic import IndexLike, free_symbols
from polyfuse_cpp.memory.address import index_text

HOST_LANGUAGE = "c++ host program"
"""The language of a `Source` that is a host program, as opposed to kernels."""

_TYPES = {"ptr": "void*", "i64": "i64", "f64": "double", "f32": "float"}


@cache
def host_header(name: str) -> str:
    """The text of one header of ``host/``."""
    return resources.files("polyfuse_cpp").joinpath("host", f"{name}.h").read_text(encoding="utf-8")


def host_text(program: HostProgram) -> str:
    """The function of a host program, without the headers that it needs."""
    return _Printer(program).text()


class _Printer:
    """The state of printing one program."""

    def __init__(self, program: HostProgram) -> None:
        self.program = program
        self.lines: list[str] = []
        self.names = Names()
        self.owned: dict[str, None] = {}
        self.addresses: dict[str, None] = {}
        self.reserved: dict[str, None] = {}
        self.numbers: dict[str, None] = {}
        self.quiet = ""

    def text(self) -> str:
        """The whole function."""
        program = self.program
        for position, item in enumerate(program.inputs):
            if item.kind == "i":
                self.lines.append(f"{self._number(item.name)} = in[{position}].i;")
            else:
                self.lines.append(f"{self._owner(item.name)}.ref = in[{position}].ref;")
        self._alignment_check()
        self._steps(program.steps)
        for position, result in enumerate(program.results):
            if isinstance(result, str):
                self.lines.append(f"out[{position}] = {self._owner(result)}.give();")
            else:
                self.lines.append(f"out[{position}] = word({self._index(result)});")
        self.lines.append("return PF_OK;")
        body = "".join(f"  {line}\n" for line in (*self._declarations(), *self.lines))
        opening = "(const pf_runtime* s, const pf_word* in, pf_word* out)"
        return f'extern "C" int {Source.SYMBOL}{opening} {{\n{body}}}\n'

    def _declarations(self) -> list[str]:
        lines = []
        if self.numbers:
            lines.append(f"i64 {', '.join(f'{name} = 0' for name in self.numbers)};")
        if self.addresses:
            lines.append(f"char {', '.join(f'*{name} = nullptr' for name in self.addresses)};")
        lines += [f"memory {name};" for name in self.reserved]
        lines += [f"owner {name}(s);" for name in self.owned]
        return lines

    def _alignment_check(self) -> None:
        """Before anything is done: whether inputs are where kernels take them to be."""
        checked = [item.name for item in self.program.inputs if item.alignment]
        if not checked:
            return
        self._steps(tuple(Address(name) for name in checked))
        addresses = " | ".join(f"(uintptr_t){self._address(name)}" for name in checked)
        most = max(item.alignment for item in self.program.inputs)
        back = " ".join(f"{self._owner(i.name)}.give();" for i in self.program.inputs if i.kind != "i")
        self.lines.append(f"if (({addresses}) & {most - 1}) {{ {back} return PF_MISALIGNED; }}")

    # Names: what is a reference, an address, memory or a number has names of its own.

    def _name(self, kind: str, name: str) -> str:
        return self.names.of((kind, name), f"{kind}_{name}")

    def _owner(self, name: str) -> str:
        found = self._name("r", name)
        self.owned[found] = None
        return found

    def _address(self, name: str) -> str:
        found = self._name("p", name)
        self.addresses[found] = None
        return found

    def _number(self, name: str) -> str:
        found = self._name("n", name)
        self.numbers[found] = None
        return found

    def _symbol(self, name: str) -> str:
        found = self._name("s", name)
        self.numbers[found] = None
        return found

    def _index(self, index: IndexLike) -> str:
        return index_text(index, {name: self._symbol(name) for name in free_symbols(index)})

    # Steps.

    def _steps(self, steps: Sequence[HostStep]) -> None:
        for step in steps:
            self._step(step)

    def _step(self, step: HostStep) -> None:
        add = self.lines.append
        match step:
            case Run():
                self._run(step)
            case MakeRequest():
                self._send(step)
            case Raise():
                self._raise(step)
            case Reserve():
                self._reserve(step)
            case Discard():
                add(f"{self._name('m', step.name)}.discard();")
            case OffsetAddress():
                offset = "" if step.offset == 0 else f" + {self._index(step.offset)}"
                add(f"{self._address(step.name)} = {self._address(step.base)}{offset};")
            case Address():
                add(f"if (!fetch(s, {self._held(step.name)}, {self._address(step.name)})) return PF_FAILED;")
            case Drop():
                add(" ".join(f"{self._owner(name)}.drop();" for name in step.names))
            case BindSize():
                self._let(step)
            case _:
                self._quiet(step)

    def _held(self, name: str) -> str:
        """A reference as C++: the program's own, or one that stays the environment's."""
        if name in self.program.constants:
            return f"s->constants[{self.program.constants.index(name)}]"
        return f"{self._owner(name)}.ref"

    def _run(self, step: Run) -> None:
        call = self.program.kernels[step.kernel]
        types = ", ".join(_TYPES[kind] for kind in call.arguments)
        operands = ", ".join(
            self._address(o) if isinstance(o, str) else self._index(o) for o in step.operands
        )
        self.lines.append(f"((void (*)({types}))s->kernels[{step.kernel}])({operands});")

    def _send(self, step: MakeRequest) -> None:
        operands = ", ".join(
            f"lent({self._held(o)})" if isinstance(o, str) else f"word({self._index(o)})"
            for o in step.operands
        )
        given = f"const pf_word a[] = {{{operands}}}; " if step.operands else ""
        words = f"pf_word b[{len(step.results)}]; " if step.results else ""
        call = f"s->request(s->context, {step.request}, {'a' if operands else 'nullptr'}, "
        call += "b)" if step.results else "nullptr)"
        letters = [c for c in self.program.requests[step.request].results if c != "-"]
        bound = [
            f"{self._owner(name)}.take(b[{i}]);" if letter == "r" else f"{self._number(name)} = b[{i}].i;"
            for i, (name, letter) in enumerate(zip(step.results, letters, strict=True))
        ]
        takes = "".join(f" {line}" for line in bound)
        self.lines.append(f"{{ {given}{words}if ({call}) return PF_FAILED;{takes} }}")

    def _raise(self, step: Raise) -> None:
        status = [f"((const i64*){self._address(step.name)})[{k}]" for k in range(step.count)]
        words = ", ".join(f"word({text})" for text in (*status, *map(self._index, step.sizes)))
        request = f"s->request(s->context, {step.request}, a, nullptr);"
        self.lines.append(
            f"if ({' | '.join(status)}) {{ const pf_word a[] = {{{words}}}; {request} return PF_FAILED; }}"
        )

    def _reserve(self, step: Reserve) -> None:
        memory, address = self._name("m", step.name), self._address(step.name)
        if step.stack:
            size = step.size if isinstance(step.size, int) else 0
            whole = -(-max(1, size) // 64) * 64
            value = " = {}" if step.zero else ""
            self.lines.append(f"alignas(64) char {memory}[{whole}]{value}; {address} = {memory};")
            return
        self.reserved[memory] = None
        failed = f"{{ {self.quiet}return PF_NO_MEMORY; }}" if self.quiet else "return PF_NO_MEMORY;"
        self.lines.append(f"if (!{memory}.reserve({self._index(step.size)})) {failed}")
        self.lines.append(f"{address} = (char*){memory}.at;")
        if step.zero:
            self.lines.append(f"__builtin_memset({address}, 0, {self._index(step.size)});")

    def _let(self, step: BindSize) -> None:
        text = self._number(step.number)
        if step.offset != 0:
            text = f"({text} - ({self._index(step.offset)}))"
        if step.factor != 1:
            text = f"index_div({text}, {self._index(step.factor)})"
        if step.power == 2:
            text = f"index_root({text})"
        self.lines.append(f"{self._symbol(step.symbol)} = {text};")

    def _quiet(self, step: Quiet) -> None:
        paused = self._name("q", str(len(self.lines)))
        self.lines.append(f"void* const {paused} = s->pause(s->context);")
        self.quiet = f"s->resume(s->context, {paused}); "
        self._steps(step.steps)
        self.lines.append(self.quiet.rstrip())
        self.quiet = ""
