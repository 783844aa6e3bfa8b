"""Chromium without a window, for the page of `polyfuse report`."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import polyfuse


def chromium(folder: Path) -> Any:
    """A driver of a new, empty browser; skips where there is none."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="drives the browser; part of the extra `dev`"
    )
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("the page is tested in Chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for switch in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
        "disable-background-networking", "disable-component-update", "window-size=1400,900",
        f"user-data-dir={folder}",
    ):  # fmt: skip
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = chromium(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(16, 32), nn.Linear(32, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        # </script><script>window.harmed = true</script><img src=x onerror="window.harmed = true">
        return torch.special.airy_ai(x) * 2  # </script><script>window.harmed = true</script>


@pytest.fixture(scope="session")
def data(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A report of forward and backward; `browser` comes first, for without one nothing need be compiled."""
    path = tmp_path_factory.mktemp("model") / "report.html"
    options = {"backends": ("interpreter",), "gemm": "library"}
    with torch.no_grad():
        inference = polyfuse.report(Model(), path, options=options)(torch.randn(4, 16))
    return dict(inference.data)
