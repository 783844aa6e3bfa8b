"""Texts in generated C."""

from __future__ import annotations


def quoted(text: str) -> str:
    """A text as a C string."""
    plain = (
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode("utf-8", "replace")
    )
    return f'"{"".join(plain)}"'
