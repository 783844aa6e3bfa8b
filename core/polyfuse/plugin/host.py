"""Native host programs, as data: what a backend prints in its own language instead of the Python program.

The core has decided everything here: which tensors are plain memory, which exist as values of the
environment, and in which order things happen. What only the environment can do (allocate a tensor that
outlives the program, call an operator, look at a layout) is a `Request`: the program names it by its number
and passes operands. So one program runs inside Python, where requests are calls of Python functions, and
without Python, where somebody else answers them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyfuse.plugin.source import HostCall
    from polyfuse.symbolic import IndexLike


@dataclass(frozen=True)
class Operand:
    """Stands among the arguments of a request for what the program passes at this position."""

    position: int


@dataclass(frozen=True)
class Constant:
    """Stands among the arguments of a request for an entry of the graph's object table."""

    key: str


@dataclass(frozen=True)
class Request:
    """Something that the environment (Python, or the runtime of a library) does for the program.

    Attributes:
        kind: `"operator"` (one of torch's, called for its results), `"out"` (one that writes to its argument
            `out`), `"object"` (an entry of the object table is called), `"kernel"` (one that has no C symbol
            is launched) or `"runtime"` (a function that Polyfuse's runtime has under that name).
        name: of what is called.
        args, kwargs: nested tuples of plain values, `Operand`, `Constant` and what an operator takes else.
        operands: a letter for each operand: `r` reference to a value, `i` integer.
        results: a letter for each result: `r`, `i`, or `-` for one that nobody wants.
        several: whether what is called returns a tuple of its results.
        origin: the operators and lines of the model that this comes from, for messages.
        subject: for messages: the input that is looked at, if it is one.
    """

    kind: str
    name: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()
    operands: str = ""
    results: str = ""
    several: bool = False
    origin: str = field(default="", compare=False)
    subject: str = field(default="", compare=False)


@dataclass(frozen=True)
class MakeRequest:
    """Make a request. Operands are references and integers; results are bound to names, `""` for none."""

    request: int
    operands: tuple[str | IndexLike, ...]
    results: tuple[str, ...]


@dataclass(frozen=True)
class Raise:
    """Make a request, which fails, if one of the first `count` i64 at an address is not zero. Its operands
    are these numbers, and the sizes."""

    request: int
    name: str
    count: int
    sizes: tuple[IndexLike, ...]


@dataclass(frozen=True)
class Run:
    """Call a kernel of the table with addresses, by name, and numbers."""

    kernel: int
    operands: tuple[str | IndexLike, ...]


@dataclass(frozen=True)
class Reserve:
    """Take so many bytes, at a multiple of 64, and bind the address to a name. With `stack`, a number that is
    known and small: the memory may lie on the stack, and is never discarded. With `zero`, all of it is zero.
    """

    name: str
    size: IndexLike
    stack: bool = False
    zero: bool = False


@dataclass(frozen=True)
class Discard:
    """Give back what was reserved under a name."""

    name: str


@dataclass(frozen=True)
class OffsetAddress:
    """Bind the address that lies so many bytes behind another one."""

    name: str
    base: str
    offset: IndexLike


@dataclass(frozen=True)
class Address:
    """Bind the address of a tensor's memory, under the name of the reference to it."""

    name: str


@dataclass(frozen=True)
class BindSize:
    """Bind a shape symbol: the `power`-th root of `(number - offset) // factor`, where `number` is an integer
    that has a name.
    """

    symbol: str
    number: str
    factor: IndexLike = 1
    offset: IndexLike = 0
    power: int = 1


@dataclass(frozen=True)
class Drop:
    """Let go of references."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Quiet:
    """Steps that need nothing of the environment and take a while: others may go on meanwhile."""

    steps: tuple[HostStep, ...]


HostStep = MakeRequest | Raise | Run | Reserve | Discard | OffsetAddress | Address | BindSize | Drop | Quiet


@dataclass(frozen=True)
class HostInput:
    """One positional input: a reference to a tensor (`t`), to something else (`r`), or an integer (`i`). A
    program owns the references that it is given.

    `alignment` is what its address has to be a multiple of in each call, or 0. Where one is not, the program
    does nothing and says so. `label` is what messages call it, where that is not its name.
    """

    name: str
    kind: str
    alignment: int = 0
    label: str = field(default="", compare=False)


@dataclass(frozen=True)
class HostProgram:
    """A host program to be printed.

    Attributes:
        name: of the graph, for comments.
        inputs: in calling order.
        constants: names of references to entries of the object table that kernels read.
        kernels: those that are called directly.
        requests: what the environment are asked for, by number.
        steps: in order.
        results: what it gives back: references and integers.
        returns: nested tuples of plain values, `Operand` (a position among the results) and `Constant`: what
            a caller in Python gets.
        constant_keys: of `constants`, in the object table.
        kernel_names: of `kernels`, in the program.
    """

    name: str
    inputs: tuple[HostInput, ...]
    constants: tuple[str, ...]
    kernels: tuple[HostCall, ...]
    requests: tuple[Request, ...]
    steps: tuple[HostStep, ...]
    results: tuple[str | IndexLike, ...]
    returns: tuple[Any, ...]
    constant_keys: tuple[str, ...] = ()
    kernel_names: tuple[str, ...] = ()
