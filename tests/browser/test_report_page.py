"""The page of `polyfuse report` in a browser: views, links between texts, keyboard, accessibility."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from polyfuse.reporting.compare import compare
from polyfuse.reporting.page import write_page
from polyfuse.reporting.steps import node_corners

VIEWS = (
    "summary",
    "graph/0/1",
    "kernel/0/0",
    "refused/0",
    "roofline",
    "memory/0",
    "timeline/0",
    "tuning",
    "compare",
)

WAIT = 30


def wait_for(browser: Any, condition: str) -> Any:
    """Until a JavaScript expression is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, WAIT).until(lambda b: b.execute_script(f"return {condition}"))


def visit(browser: Any, view: str) -> None:
    browser.execute_script(f"location.hash = '#/{view}'")
    name = view.split("/")[0]
    wait_for(browser, f"document.querySelector('nav a[aria-current]')?.hash.startsWith('#/{name}')")
    wait_for(browser, "[...document.querySelectorAll('.chart')].every(c => c.querySelector('svg'))")


def focus(browser: Any, selector: str) -> Any:
    element = browser.find_element("css selector", selector)
    browser.execute_script("arguments[0].focus()", element)
    return element


@pytest.fixture(scope="module")
def opened(browser: Any, data: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("page") / "report.html"
    nasty = "</script><script>window.harmed = true</script>"
    shown = {
        **data,
        "title": nasty,
        "compare": compare({**data, "breaks": [{"reason": nasty, "count": 1}]}, data),
    }
    write_page(path, shown)
    browser.get_log("browser")
    browser.get(path.as_uri())
    wait_for(browser, "document.querySelector('main h2') !== null")
    return browser


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_shows_something_and_logs_nothing(opened: Any, view: str) -> None:
    visit(opened, view)
    assert len(opened.find_element("css selector", "main").text) > 40
    assert not [entry for entry in opened.get_log("browser") if entry["level"] == "SEVERE"]


def test_texts_of_the_user_are_text(opened: Any) -> None:
    visit(opened, "kernel/0/0")
    assert "window.harmed" in opened.find_element("css selector", ".code").text
    assert "<script>" in opened.find_element("css selector", "h1").text
    visit(opened, "compare")
    assert "<script>window.harmed" in opened.find_element("css selector", "main").text
    assert opened.execute_script("return window.harmed") is None


def test_lines_are_linked_by_keyboard(opened: Any, data: dict[str, Any]) -> None:
    at = next(i for i, s in enumerate(data["graphs"][0]["steps"]) if "aten.relu.default" in s["ops"])
    visit(opened, f"kernel/0/{at}")
    from selenium.webdriver.common.keys import Keys

    ir = focus(opened, ".code[aria-label=IR]")
    ir.send_keys(Keys.ARROW_DOWN)
    current = opened.find_element("css selector", ".line.current code").text
    assert current.strip().startswith("v") and "=" in current
    marked = opened.find_elements("css selector", ".code[aria-label=Model] .line.marked code")
    assert [line.text.strip() for line in marked] == ["x = x + self.down(torch.relu(self.up(self.norm(x))))"]


def test_the_graph_is_searched_filtered_and_walked(opened: Any, data: dict[str, Any]) -> None:
    from selenium.webdriver.common.keys import Keys

    steps = data["graphs"][0]["steps"]
    visit(opened, "graph/0")
    search = opened.find_element("css selector", "#search")
    search.send_keys("airy")
    found = sum(
        "airy" in f"{s['name']} {s['ops']} {[data['sources'][n]['code'] for n in s['sources']]}"
        for s in steps
    )
    assert 0 < found < len(steps)
    wait_for(opened, f"document.querySelector('.toolbar output').textContent === '{found} of {len(steps)}'")
    search.send_keys(Keys.ENTER)
    wait_for(opened, "/airy/.test(document.querySelector('.drawing aside').textContent)")
    search.send_keys(Keys.CONTROL, "a")
    search.send_keys(Keys.BACKSPACE)
    canvas = focus(opened, ".drawing canvas")
    visit(opened, "graph/0")
    canvas.send_keys(Keys.ARROW_DOWN)
    assert opened.execute_script("return location.hash") == "#/graph/0/0"
    canvas.send_keys(Keys.ARROW_DOWN)
    following = next(i for i, s in enumerate(steps) if 0 in s["inputs"])
    wait_for(opened, f"location.hash === '#/graph/0/{following}'")
    canvas.send_keys(Keys.ENTER)
    wait_for(opened, f"location.hash === '#/kernel/0/{following}'")


def test_digits_choose_views_and_a_button_the_colours(opened: Any) -> None:
    visit(opened, "summary")
    body = focus(opened, "main")
    body.send_keys("6")
    wait_for(opened, "location.hash.startsWith('#/memory/')")
    before = opened.execute_script("return getComputedStyle(document.body).backgroundColor")
    opened.find_element("css selector", ".brand button").click()
    wait_for(opened, f"getComputedStyle(document.body).backgroundColor !== '{before}'")
    opened.find_element("css selector", ".brand button").click()


@pytest.mark.quick(1)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened: Any, theme: str) -> None:
    pytest.importorskip("axe_core_python", reason="checks accessibility; part of the extra `dev`")
    axe = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    visit(opened, "summary")
    button = opened.find_element("css selector", ".brand button")
    if (button.text == "Dark") == (theme == "dark"):
        button.click()
    opened.execute_script(axe)
    found = []
    for view in VIEWS:
        visit(opened, view)
        result = opened.execute_async_script(
            "const done = arguments[0]; axe.run({resultTypes: ['violations']}).then(r => done(r.violations))"
        )
        found += [
            f"{view}: {item['id']} ({item['impact']}): {item['nodes'][0]['html'][:160]}"
            for item in result
            if item["impact"] in ("serious", "critical")
        ]
    assert not found, "\n".join(found)


def test_five_thousand_kernels_are_drawn_without_an_element_each(
    browser: Any, data: dict[str, Any], tmp_path: Path
) -> None:
    count = 5000
    inputs = [[j for j in (i - 1, i - 9) if j >= 0] for i in range(count)]
    graph = data["graphs"][0]
    step = next(s for s in graph["steps"] if s["type"] == "kernel")
    steps = [
        {**step, "name": f"kernel_{i}", "inputs": before, "x": x, "y": y}
        for i, (before, (x, y)) in enumerate(zip(inputs, node_corners(inputs), strict=True))
    ]
    path = tmp_path / "large.html"
    write_page(path, {**data, "graphs": [{**graph, "steps": steps}]})
    browser.get(path.as_uri())
    for view in ("summary", "graph/0/4000", "roofline", "refused/0"):
        visit(browser, view)
        if not view.startswith("roofline"):  # a dot each
            assert browser.execute_script("return document.querySelectorAll('main *').length") < 2500
    visit(browser, "graph/0/4000")
    assert "kernel_4000" in browser.find_element("css selector", ".drawing aside").text
    browser.find_element("css selector", "#search").send_keys("kernel_49")
    wait_for(browser, "document.querySelector('.toolbar output').textContent === '111 of 5,000'")
    assert not [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
