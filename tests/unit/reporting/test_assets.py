from __future__ import annotations

import hashlib
import json
import re

from house.source_tree import CORE, ROOT

UI = ROOT / "tools" / "report_ui"
ASSETS = CORE / "reporting" / "assets"


def test_the_page_is_built_from_its_sources() -> None:
    names = [f"src/{path.name}" for path in sorted((UI / "src").iterdir())]
    digest = hashlib.sha256()
    for name in (*names, "build.mjs", "package-lock.json"):
        digest.update(f"{name}\n".encode() + (UI / name).read_bytes())
    assert digest.hexdigest() == (ASSETS / "sources.sha256").read_text().strip(), "run `make report-ui`"


def test_the_licences_of_what_is_bundled_are_there() -> None:
    text = (ASSETS / "LICENSES.txt").read_text(encoding="utf-8")
    for name in json.loads((UI / "package.json").read_text())["dependencies"]:
        assert re.search(rf"^{re.escape(name)} [\d.]+ \((MIT|ISC|BSD-3-Clause)\)$", text, re.MULTILINE), name


def test_the_page_is_small_and_ends_only_where_it_should() -> None:
    script = (ASSETS / "report.js").read_text(encoding="utf-8")
    assert len(script) < 600_000
    assert "</script" not in script and "<!--" not in script


def test_the_lock_names_no_host() -> None:
    assert "resolved" not in (UI / "package-lock.json").read_text()
