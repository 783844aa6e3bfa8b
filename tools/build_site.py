"""Builds the documentation as a site, and checks what was built: `make docs-site`.

    python tools/build_site.py FOLDER

MkDocs runs strictly: a warning, a link to no page or anchor, and a page outside of the navigation are errors.
Then the written HTML is read: links within the site must lead to a file, and no page may load anything from
another host. What the theme would load on demand (Mermaid) is not used by any page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent

LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}
"""Attributes by which a page loads something when it opens."""

_STYLE_HOST = re.compile(r"(?:@import|url\()\s*['\"]?(?:https?:)?//")


class _References(HTMLParser):
    """What a page loads and links, and its anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            if value and (tag, name) in LOADED and ("rel", "canonical") not in attrs:
                self.loaded.append(value)
            if value and (tag, name) == ("a", "href"):
                self.linked.append(value)


def build(folder: Path) -> str:
    """Build the site into `folder`, and answer what MkDocs printed.

    Raises:
        RuntimeError: MkDocs warned or failed; the message is its output.
    """
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"mkdocs failed:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def faults(folder: Path) -> Iterator[str]:
    """Each dead link of a built site, and each thing that it would load from another host."""
    pages: dict[Path, _References] = {}
    for path in sorted(folder.rglob("*.html")):
        found = pages[path.resolve()] = _References()
        found.feed(path.read_text(encoding="utf-8"))
    for path, found in pages.items():
        name = path.relative_to(folder.resolve())
        for target in [*found.loaded, *found.linked]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                if target in found.loaded and parts.scheme != "data":
                    yield f"{name} loads {target}"
                continue
            if path.name == "404.html":
                continue  # its links begin at the host's root, which a folder has not
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not file.exists():
                yield f"{name} links {target}, which does not exist"
            elif parts.fragment and file in pages and unquote(parts.fragment) not in pages[file].anchors:
                yield f"{name} links {target}, but there is no such anchor"
    for path in sorted(folder.rglob("*.css")):
        if _STYLE_HOST.search(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(folder)} loads from another host"


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    build(folder)
    found = list(faults(folder))
    print("\n".join(found) or f"wrote {folder}/index.html")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
