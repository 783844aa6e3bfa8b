"""Reading the text that `polyfuse.ir.text.print` writes. Nothing is simplified: what is read was printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from polyfuse.base.errors import ParseError
from polyfuse.ir.graph import Graph
from polyfuse.ir.kernel import Kernel
from polyfuse.ir.text.parse_base import Reader
from polyfuse.ir.text.parse_graph import GraphReader
from polyfuse.ir.text.parse_kernel import KernelReader
from polyfuse.ir.text.tokens import Tokens
from polyfuse.symbolic import IndexLike


def parse(text: str) -> Any:
    """The kernel, graph, node, expression or index that a text describes.

    Raises:
        ParseError: the text is not well formed; the message names line and column.
    """
    tokens = Tokens(text)
    kernels, graphs = KernelReader(tokens), GraphReader(tokens)
    forms: dict[str, tuple[Reader, Callable[[], Any]]] = {
        "kernel": (kernels, kernels.kernel),
        "graph": (graphs, graphs.graph),
        "node": (graphs, graphs.node),
        "expr": (graphs, graphs.expression),
        "index": (graphs, lambda: _lone_index(graphs)),
    }
    tokens.next_line()
    start = tokens.mark()
    graphs.symbols()
    word = tokens.text
    if word not in forms:
        raise tokens.error(f"the text begins with {word!r}, which is none of {', '.join(forms)}")
    reader, read = forms[word]
    tokens.reset(start)
    reader.symbols()
    found = read()
    tokens.next_line()
    if tokens.kind != "end":
        raise tokens.error(f"{tokens.text!r} stands after the end")
    return found


def _lone_index(reader: Reader) -> IndexLike:
    reader.tokens.expect("index")
    return reader.index()


def parse_kernel(text: str) -> Kernel:
    """The kernel that a text describes."""
    return _of_type(parse(text), Kernel)


def parse_graph(text: str) -> Graph:
    """The graph that a text describes; its objects are not part of the text."""
    return _of_type(parse(text), Graph)


def _of_type(found: Any, wanted: type) -> Any:
    if not isinstance(found, wanted):
        raise ParseError(f"the text describes a {type(found).__name__}, not a {wanted.__name__}")
    return found
