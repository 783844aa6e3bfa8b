"""The text of a graph before and after each pass that changed it, for dumps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["NO_TEXTS", "PassText", "PassTexts"]


@dataclass(frozen=True)
class PassText:
    """What one pass was given and what it left."""

    name: str
    before: str
    after: str


class PassTexts:
    """Collects texts; without `wanted`, none is even made.

    A text that cannot be made says why instead: looking on changes nothing that is compiled.
    """

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self._made: list[PassText] = []
        self._last = ""

    @property
    def made(self) -> tuple[PassText, ...]:
        """In the order of the passes."""
        return tuple(self._made)

    def begin(self, text: Callable[[], str]) -> None:
        """Note what the next pass is given."""
        if self.wanted:
            self._last = _text_of(text)

    def note(self, name: str, text: Callable[[], str]) -> None:
        """Note what a pass left; nothing is kept where that is what it was given."""
        if not self.wanted:
            return
        before, self._last = self._last, _text_of(text)
        if self._last != before:
            self._made.append(PassText(name, before, self._last))


def _text_of(text: Callable[[], str]) -> str:
    try:
        return text()
    except Exception as error:
        return f"# there is no text: {type(error).__name__}: {error}\n"


NO_TEXTS = PassTexts(False)
