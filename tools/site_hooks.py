"""What MkDocs asks when it builds the site: navigation, pages from outside of docs/, and the API reference.

Pages are written to be read in a checkout too. So the navigation is docs/index.md, which lists every page
under headings; CONTRIBUTING.md and CHANGELOG.md become pages of the site; and docs/reference/api.md, which
`make docs` writes as text, is replaced by what mkdocstrings reads from the code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

OUTSIDE = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages from the root of the repository, by their names on the site."""

API = "reference/api.md"
PUBLIC = (
    "polyfuse",
    "polyfuse.aot",
    "polyfuse.cache",
    "polyfuse.plugin",
    "polyfuse.testing",
    "polyfuse.base.errors",
)
"""Modules whose `__all__`, or public names, are the Python interface."""

NOT_LISTED = ("index.md", "decisions/README.md")


def on_config(config: Any) -> Any:
    """Make the navigation."""
    config.nav = navigation((DOCS / "index.md").read_text(encoding="utf-8"))
    return config


def navigation(index: str) -> list[dict[str, Any]]:
    """The headings of the index, each with the pages that it is the first to link; then all decisions."""
    found: list[dict[str, Any]] = [{"Home": "index.md"}]
    seen = set(NOT_LISTED)
    for heading, text in re.findall(r"^## (.*)\n((?:(?!## ).*\n?)*)", index, re.MULTILINE):
        if "|---|" in text:
            continue  # a table that repeats links by role
        pages = []
        for title, target in re.findall(r"\[([^\]]+)\]\(([^)#]+)\)", text):
            page = OUTSIDE.get(target.removeprefix("../"), target)
            if page not in seen:
                seen.add(page)
                pages.append({title.replace("`", ""): page})
        if pages:
            found.append({heading: pages})
    names = sorted(path.name for path in (DOCS / "decisions").glob("*.md") if path.name != "README.md")
    decisions = ["decisions/README.md", *(f"decisions/{name}" for name in names)]
    return [*found, {"Decisions": decisions}]


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside of docs/."""
    from mkdocs.structure.files import File

    for source, name in OUTSIDE.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links of a checkout into links of the site."""
    if page.file.src_uri == API:
        return api_page()
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]
    up = "../" * page.file.src_uri.count("/")
    for source, name in OUTSIDE.items():
        markdown = markdown.replace(f"]({up}../{source}", f"]({up}{name}")
    if page.file.src_uri in OUTSIDE.values():
        markdown = re.sub(r"\]\(docs/", "](", markdown)
        for source, name in OUTSIDE.items():
            markdown = markdown.replace(f"]({source}", f"]({name}")
    return markdown


def api_page() -> str:
    """The Python interface, for mkdocstrings."""
    lines = ["# Python API", "", '`torch.compile(model, backend="polyfuse")` needs no import.', ""]
    for name in PUBLIC:
        lines += [f"## `{name}`", "", f"::: {name}", "    options: {show_root_heading: false}", ""]
    return "\n".join(lines)
