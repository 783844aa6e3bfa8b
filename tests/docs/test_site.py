"""The documentation as a site: built without a warning, a dead link, or anything from another host."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from docs.blocks import check, fenced
from docs.test_tour import CURRENT
from house.source_tree import ROOT

TOOLS = ROOT / "tools"


def tool(name: str) -> ModuleType:
    """A script of tools/, as a module."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_or_a_dead_link(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("MkDocs is not installed; pip install 'polyfuse[docs]'")
    tool("build_site").build(tmp_path)
    assert list(tool("build_site").faults(tmp_path)) == []
    api = (tmp_path / "reference" / "api.html").read_text(encoding="utf-8")
    assert 'id="polyfuse.aot.package"' in api and 'id="polyfuse.plugin.Backend"' in api


def test_every_page_is_in_the_navigation_once() -> None:
    sections = tool("site_hooks").navigation((ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    pages: list[str] = []
    for section in sections:
        (content,) = section.values()
        entries = [content] if isinstance(content, str) else content
        pages += [entry if isinstance(entry, str) else next(iter(entry.values())) for entry in entries]
    written = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert sorted(pages) == sorted({*written, "contributing.md", "changelog.md"})


def test_links_of_a_checkout_become_links_of_the_site() -> None:
    def page(name: str, text: str) -> str:
        at = SimpleNamespace(file=SimpleNamespace(src_uri=name), meta={})
        return str(tool("site_hooks").on_page_markdown(text, at, None, None))

    assert page("tour.md", "[a](../CONTRIBUTING.md#rules)") == "[a](contributing.md#rules)"
    assert page("decisions/names.md", "[a](../../CHANGELOG.md)") == "[a](../changelog.md)"
    assert (
        page("contributing.md", "[a](docs/tour.md), [b](CHANGELOG.md)") == "[a](tour.md), [b](changelog.md)"
    )
    assert "::: polyfuse.aot" in page("reference/api.md", "")


def test_dead_links_and_other_hosts_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<h1 id="top"></h1>')
    good = '<a href="other.html#top"></a><a href="https://example.com"></a><a href="#here" id="here"></a>'
    (tmp_path / "index.html").write_text(good)
    assert list(tool("build_site").faults(tmp_path)) == []
    bad = '<a href="none.html"></a><a href="other.html#bottom"></a><img src="https://example.com/a.png">'
    (tmp_path / "index.html").write_text(bad + '<link rel="stylesheet" href="//example.com/a.css">')
    (tmp_path / "a.css").write_text("@import url(https://example.com/font.css)")
    found = "\n".join(tool("build_site").faults(tmp_path))
    assert found.count("\n") == 4 and "none.html" in found and "no such anchor" in found
    assert "loads https://example.com/a.png" in found and "a.css loads from another host" in found


@pytest.mark.skipif(not CURRENT, reason="the pictures show what torch 2.13 on x86-64 gives")
def test_the_pictures_of_the_concepts_are_current(request: pytest.FixtureRequest) -> None:
    drawing = tool("draw_concepts")
    for name, text in drawing.pictures().items():
        path = drawing.FOLDER / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text, f"docs/images/{name} is stale; run `make docs`"
    source = (TOOLS / "draw_concepts.py").read_text(encoding="utf-8")
    function = source[source.index("def attention(") :].partition("\n\n\n")[0]
    blocks = {"pictured": fenced("python", function)}
    check(ROOT / "docs" / "concepts.md", blocks, request.config.getoption("--update-golden"))
