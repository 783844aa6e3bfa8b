"""Names in generated text: one allocator for each text, so that names are unique there."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

_LONGEST = 60


class Names:
    """Gives every thing in one generated text a name that nothing else there has.

    Names are the same in every process: they depend on what is asked for, and in which order.

    Args:
        reserved: words that stand for something else in the text: keywords, functions, macros, types, and
            names that it has to print as they are.
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken = set(reserved)
        self._known: dict[Hashable, str] = {}

    def fresh(self, wish: str) -> str:
        """A new name: the wish as an ASCII identifier where that is free, else one like it."""
        plain = plain_word(wish)
        found, count = plain, 1
        while found in self._taken:
            count += 1
            found = f"{plain}_" if count == 2 else f"{plain}_{count}"
        self._taken.add(found)
        return found

    def of(self, thing: Hashable, wish: str) -> str:
        """The name of a thing, which it gets when it is first asked for."""
        found = self._known.get(thing)
        if found is None:
            found = self._known[thing] = self.fresh(wish)
        return found

    def bind(self, thing: Hashable, name: str) -> None:
        """Give a thing a name that the text has to print as it is."""
        self._taken.add(name)
        self._known[thing] = name


def plain_word(text: str) -> str:
    """`text` as an ASCII identifier. Different texts may give the same one."""
    if text.isascii() and text.isidentifier() and len(text) <= _LONGEST:
        return text
    word = "".join(c if c.isascii() and c.isalnum() else "_" for c in text)[:_LONGEST]
    return word if word[:1].isalpha() or word[:1] == "_" else f"v_{word}"
