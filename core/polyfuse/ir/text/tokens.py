"""The words of IR text, with the position of each for error messages."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from polyfuse.base.errors import ParseError

_PATTERN = re.compile(
    r"""
    (?P<space>[ \t\r]+ | \#[^\n]*)
  | (?P<newline>\n)
  | (?P<string>"(?:[^"\\\n]|\\.)*")
  | (?P<number>\d+\.(?!\.)\d*(?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ | \d+)
  | (?P<name>[A-Za-z_@%][A-Za-z0-9_@%.$]*)
  | (?P<mark>\.\. | // | [-+*/%(){}\[\]<>,:;=~&@])
    """,
    re.VERBOSE,
)


@dataclass(frozen=True)
class Token:
    """One word and its position. Kinds: name, number, string, mark, newline, end."""

    kind: str
    text: str
    line: int
    column: int


class Tokens:
    """A reading position in a text. Newlines count only outside parentheses, brackets and angle brackets."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self._tokens = tuple(self._split(text))
        self._at = 0

    def _split(self, text: str) -> list[Token]:
        found: list[Token] = []
        depth = 0
        line, start, at = 1, 0, 0
        while at < len(text):
            match = _PATTERN.match(text, at)
            if match is None or match.lastgroup is None:
                here = Token("mark", text[at], line, at - start + 1)
                raise self._error(f"{text[at]!r} begins no word", here)
            kind, word = match.lastgroup, match.group()
            # "%" alone is a sign; as the beginning of a word it is part of a name
            if word == "%":
                kind = "mark"
            if kind == "mark":
                depth += (word in "([") - (word in ")]")
            if kind == "newline":
                if depth == 0:
                    found.append(Token(kind, word, line, at - start + 1))
                line, start = line + 1, match.end()
            elif kind != "space":
                found.append(Token(kind, word, line, at - start + 1))
            at = match.end()
        found.append(Token("end", "end of text", line, at - start + 1))
        return found

    @property
    def current(self) -> Token:
        """The next word."""
        return self._tokens[self._at]

    @property
    def kind(self) -> str:
        """Kind of the next word."""
        return self._tokens[self._at].kind

    @property
    def text(self) -> str:
        """The next word."""
        return self._tokens[self._at].text

    def mark(self) -> int:
        """The position, for `reset`."""
        return self._at

    def reset(self, mark: int) -> None:
        """Go back to a position."""
        self._at = mark

    def error(self, cause: str) -> ParseError:
        """An error at the next word."""
        return self._error(cause, self.current)

    def _error(self, cause: str, token: Token) -> ParseError:
        shown = self._lines[token.line - 1].strip()
        return ParseError(f"line {token.line}, column {token.column}: {cause}", f"the line is: {shown}")

    def skip(self, text: str) -> bool:
        """Move past the next word if it is this sign or this plain word."""
        token = self.current
        if token.text == text and token.kind in ("mark", "name"):
            self._at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        """Move past this word, or raise."""
        if not self.skip(text):
            raise self.error(f"{text!r} is expected, not {self.text!r}")

    def name(self) -> str:
        """Read a name, plain or quoted."""
        token = self.current
        if token.kind == "string":
            return self.string()
        if token.kind != "name":
            raise self.error(f"a name is expected, not {token.text!r}")
        self._at += 1
        return token.text

    def string(self) -> str:
        """Read a quoted text."""
        token = self.current
        if token.kind != "string":
            raise self.error(f"a quoted text is expected, not {token.text!r}")
        self._at += 1
        return str(json.loads(token.text))

    def integer(self) -> int:
        """Read an integer, with its sign."""
        value = self.number()
        if isinstance(value, int):
            return value
        raise self.error("an integer is expected")

    def number(self) -> int | float:
        """Read a number, with its sign; infinity and NaN are ``inf`` and ``nan``."""
        sign = -1 if self.skip("-") else 1
        token = self.current
        if token.kind == "name" and token.text in ("inf", "nan"):
            self._at += 1
            # one NaN object everywhere: tuples that hold it compare equal
            return sign * math.inf if token.text == "inf" else math.nan
        if token.kind != "number":
            raise self.error(f"a number is expected, not {token.text!r}")
        self._at += 1
        return sign * (int(token.text) if token.text.isdigit() else float(token.text))

    def is_bounds(self) -> bool:
        """Whether bounds of a symbol follow: an integer, then two dots."""
        ahead = self._tokens[self._at + (self.text == "-") :][:2]
        return len(ahead) == 2 and ahead[0].kind == "number" and ahead[1].text == ".."

    def at_line_end(self) -> bool:
        """Whether nothing more stands on this line."""
        return self.kind in ("newline", "end") or self.text == "}"

    def next_line(self) -> None:
        """Move to the next line that is not empty."""
        while self.kind == "newline":
            self._at += 1

    def end_line(self) -> None:
        """Require that the line ends here, and go on to the next."""
        if not self.at_line_end():
            raise self.error(f"{self.text!r} is not expected here")
        self.next_line()


RESERVED = ("none", "true", "false", "inf", "nan", "host", "object", "dtype", "complex")
"""Words that begin a value; a text of that content is quoted."""
