"""What is in a cache key.

A kernel's key holds everything that its built files depend on, and nothing else:

* the source text, its language and what the backend keeps beside it (`Source.key` is their digest),
* the backend's name and everything in `Backend.describe()`: compiler, flags, target, device,
* the version and a digest of the code of the backend's plugin, so that whoever edits one never runs what it
  built before (`polyfuse.plugin.session.inventory.code_of`),
* what plugins add by the hook `polyfuse_cache_key`,
* the version of Polyfuse and the format of the store.

The key of a compiled graph holds the text of the captured graph with the types and layouts of its inputs,
the options that change code, torch's version and switches, and the plugins with a digest of their code and of
the compiler's own. What the backends say of themselves is compared when an entry is read: those that have no
part in a graph are not even loaded.

Not in a kernel's key: where the files lie, the name for people, the order of compilation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from polyfuse.base.code import version
from polyfuse.base.digest import digest, stable_json

# Raised whenever the layout or meaning of stored files changes; old entries are then simply not found.
STORE_FORMAT: Final = 2


def kernel_key(source_key: str, backend: str, facts: Mapping[str, str], added: Sequence[str] = ()) -> str:
    """Return the address of a built kernel, from the `key` of its `Source`. `added` is what plugins add, and
    their code.
    """
    environment = {"format": STORE_FORMAT, "polyfuse": version(), "backend": backend, "facts": facts}
    if added:
        environment["added"] = tuple(added)
    return digest("kernel", source_key, stable_json(environment))


def graph_key(code: str, inputs: Sequence[str], options: str) -> str:
    """Return the address of a captured graph: its code, its inputs as text, and the options' fingerprint."""
    return digest("graph", version(), code, stable_json(list(inputs)), options)


def compiled_key(graph: str, environment: Sequence[str], options: str) -> str:
    """Return the address of a compiled graph, from the text of the captured one.

    Args:
        environment: switches of torch, the plugins and their code, and what they add to keys.
        options: the fingerprint of the options.
    """
    return digest("compiled", str(STORE_FORMAT), version(), graph, stable_json(list(environment)), options)


def unit_key(kernel_keys: Iterable[str]) -> str:
    """Return the address of several kernels built together, in any order."""
    return digest("unit", *sorted(kernel_keys))
