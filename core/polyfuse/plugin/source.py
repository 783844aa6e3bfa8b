"""What passes through a code generator: the text of a kernel, the kernel once it is loaded, and how a native
host program calls it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from polyfuse.base.digest import digest

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from polyfuse.ir.kernel import Alias


@dataclass(frozen=True)
class Source:
    """The text of one kernel in a backend's language.

    `name` is for people (`"fused_add_relu_3"`); it must not occur in `text`, or else equal kernels of
    repeated layers would be built twice. `key` is the kernel's address: a digest of `language`, `text` and
    `meta`, filled in when left empty. Several sources may be built as one unit, so whatever `text` defines
    must carry a name of its own: by convention, `text` writes `SYMBOL` where the entry point's name goes, and
    `rendered` puts `k_` and the key there.

    `meta` is text that `load` will need, such as the argument kinds; the core only keeps it. `note` is what
    people should know of how the kernel is computed; `polyfuse explain` prints it.

    `refused_aliases` are the pairs of the kernel's arguments (`Kernel.aliases`) that this text cannot take as
    one memory, because it reads an element again after it was written. Programs keep these apart.
    """

    name: str
    text: str
    language: str
    key: str = ""
    meta: str = ""
    note: str = ""
    refused_aliases: tuple[Alias, ...] = ()

    SYMBOL: ClassVar[str] = "POLYFUSE_KERNEL"

    def __post_init__(self) -> None:
        if not self.key:
            object.__setattr__(self, "key", digest(self.language, self.text.strip(), self.meta))

    @property
    def symbol(self) -> str:
        """A name unique to this kernel that is an identifier in practically every language."""
        return f"k_{self.key}"

    def rendered(self) -> str:
        """Return the text with the entry point's name in place."""
        return self.text.replace(self.SYMBOL, self.symbol)

    def renamed(self, name: str) -> Source:
        """Return the same kernel under another name for people."""
        return replace(self, name=name)


@runtime_checkable
class Launchable(Protocol):
    """A loaded kernel: called with the kernel's arguments, buffers first, in its order. Returns nothing."""

    def __call__(self, *args: object) -> None: ...


@dataclass(frozen=True)
class Expected:
    """What a call of a kernel that is written by hand has to give.

    Attributes:
        operator: of torch, which computes the same: ``"aten.sort.default"``; empty where a call is no data,
            because it has functions of the model in it.
        args, kwargs: with which it is called for that.
        results: of the kernel, by their positions among its operands: the right values in f64, and how far
            each element of a right kernel may be off, in f64 too; infinity allows anything.
        updated: results that the kernel adds to, instead of writing to what held nothing.
        beginnings: operands that stand for all of their memory from their first element on.
    """

    operator: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    updated: frozenset[int] = frozenset()
    beginnings: frozenset[int] = frozenset()


class WrittenKernel(Protocol):
    """A kernel whose frame no generator made, so that no representation says what it computes: an object for
    `LoweringContext.add_object` that can be compared (option `check`), and barred where it is wrong.

    Attributes:
        plugin: whose it is.
    """

    __name__: str
    plugin: str

    @property
    def key(self) -> str:
        """A digest of its text, and of the compiler and machine that it is built with and for."""

    def __call__(self, *operands: Any) -> None:
        """Launch it: tensors first, then sizes. What it writes held nothing before."""

    def expected(self, *operands: Any) -> Expected | None:
        """What a call with these operands has to give; None where the library computes it anyway."""

    def by_library(self, *operands: Any) -> None:
        """Let the library compute the same, into the same operands."""


class PackableKernel(WrittenKernel, Protocol):
    """A written kernel that a package can hold, where its backend's loader reads it without its plugin."""

    def located(self) -> tuple[str, Path, str]:
        """Wait for its build. Return the backend whose loader reads it, the folder and its key there.

        Raises:
            PolyfuseError, OSError: it cannot be built here.
        """


@dataclass(frozen=True)
class HostCall:
    """How a native host program calls a kernel directly: a C symbol in a library of the built folder.

    `arguments` are kinds in the order of the kernel's arguments: `ptr`, `i64`, `f64` or `f32`.
    """

    library: str
    symbol: str
    arguments: tuple[str, ...]
