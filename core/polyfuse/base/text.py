"""Small helpers for text that people read."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

_FARTHER: Final = 0.25
"""How much less like it a second suggestion may be than the first."""


def nearest(name: str, known: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """Return the known names most like `name`, best first."""
    found = difflib.get_close_matches(name, sorted(known), n=limit, cutoff=0.5)
    alike = [difflib.SequenceMatcher(None, other, name).ratio() for other in found]
    return tuple(other for other, ratio in zip(found, alike, strict=True) if ratio >= alike[0] - _FARTHER)


def join_words(words: Sequence[str], last: str = "and") -> str:
    """Join words as prose: `a`, `a and b`, `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def counted(number: int, one: str, many: str = "") -> str:
    """A number with a noun: `1 kernel`, `2 kernels`. `many`: the plural, where that is not `one` and an s."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def shorten(text: str, width: int = 100) -> str:
    """Return `text` on one line, cut to `width` characters."""
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"


def printable(text: str) -> str:
    """Return `text` without what a terminal would obey: escape sequences, and control characters but newlines
    and tabs. Text from files and compilers goes through this before people see it.
    """
    return _CONTROL.sub("", _ESCAPE.sub("", text)) if _CONTROL.search(text) else text


def short_source(source: str) -> str:
    """Return a line of the model as messages show it: `model.py:12 in forward: return x.sin()`."""
    return shorten(_FRAME.sub(r"\1:\2 in ", source))


# Colours and movements of the cursor; titles and links, which end with a bell or a backslash; other ones.
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

_FRAME = re.compile(r'File "(?:.*/)?([^"/]+)", line (\d+), in ')


def brief(error: BaseException) -> str:
    """The type of an error and its first words, on one line, also where the error cannot be printed."""
    try:
        words = str(error)
    except (Exception, SystemExit):
        words = "an error that cannot be printed"
    return f"{type(error).__name__}: {shorten(words, 200)}"


@dataclass(frozen=True)
class PassText:
    """What one pass was given and what it left."""

    name: str
    before: str
    after: str


class PassTexts:
    """Collects the text of a graph before and after each pass that changed it, for dumps; without `wanted`,
    none is even made.

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
        """Note what a pass left; nothing is recorded where that is what it was given."""
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
