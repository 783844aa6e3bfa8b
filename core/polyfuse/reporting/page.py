"""Reports as files: the HTML page, and the data in it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from polyfuse.base.errors import PolyfuseError
from polyfuse.base.files import atomic_write
from polyfuse.reporting.describe import FORMAT

_DATA = re.compile(r'<script id="data" type="application/json">(.*?)</script>', re.DOTALL)
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
"""The page loads nothing from anywhere."""


def page(data: Mapping[str, Any]) -> str:
    """The page: one file that needs no other."""
    assets = files("polyfuse.reporting") / "assets"
    script = (assets / "report.js").read_text(encoding="utf-8")
    style = (assets / "report.css").read_text(encoding="utf-8")
    body = [
        '<div id="app"><p>This page needs JavaScript.</p></div>',
        f'<script id="data" type="application/json">{_embedded(data)}</script>',
        f"<script>{script}</script>",
    ]
    return document(f"{data['title']} – Polyfuse report", _POLICY, style, body)


def _embedded(data: Mapping[str, Any]) -> str:
    """JSON that no HTML parser takes for markup: `</script>` and `<!--` need a `<`, which is never there."""
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write_page(path: Path, data: Mapping[str, Any]) -> None:
    """Write the HTML file."""
    write_document(path, page(data))


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write the data alone."""
    write_document(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def document(title: str, policy: str, style: str, body: Iterable[str]) -> str:
    """A page.

    Args:
        title: as text.
        policy: what the browser may do (Content-Security-Policy).
        style: CSS.
        body: lines of HTML.
    """
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            *body,
            "</body>",
            "</html>",
            "",
        ]
    )


def write_document(path: Path, text: str) -> None:
    """Write a file of a report.

    Raises:
        PolyfuseError: it cannot be written.
    """
    try:
        atomic_write(path, text)
    except OSError as error:
        raise PolyfuseError(f"{path} cannot be written ({error.strerror})", "name another file") from error


def read_report(path: Path) -> dict[str, Any]:
    """The data of an earlier report, from its page or from JSON.

    Raises:
        PolyfuseError: the file is no report, or one of a version that this one cannot read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolyfuseError(f"{path} cannot be read ({error})", "name a report, as HTML or JSON") from error
    found = _DATA.search(text)
    try:
        data = json.loads(found.group(1) if found else text)
        made = data["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise PolyfuseError(f"{path} is no report of Polyfuse", "name a report, as HTML or JSON") from error
    if made != FORMAT:
        raise PolyfuseError(
            f"{path} is a report in format {made}, and this version reads format {FORMAT}",
            "make it again with this version",
        )
    result: dict[str, Any] = data
    return result
