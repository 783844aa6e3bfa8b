"""Takes the pictures of docs/report.md: the report of a small transformer, in Chromium."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from selenium import webdriver
from torch import nn
from torch.nn import functional as F

import polyfuse

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
SIZE = (1360, 860)
COLORS = 160


class Block(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then two layers."""
        return self.feed(x + self.attend(self.norm(x)))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Causal attention."""
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """The feed-forward layers."""
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Transformer(nn.Module):
    """Four layers."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(256, 8) for _ in range(4))
        self.head = nn.Linear(256, 512)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        for block in self.blocks:
            x = block(x)
        return F.log_softmax(self.head(x), dim=-1)


def main() -> None:
    """Write the pictures, or say what is missing."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        sys.exit("Chromium is missing: apt-get install chromium chromium-driver")
    IMAGES.mkdir(exist_ok=True)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        report = polyfuse.report(Transformer(), Path(folder) / "report.html")(torch.randn(2, 128, 256))
        steps = report.data["graphs"][0]["steps"]
        kernel = next(i for i, s in enumerate(steps) if "aten.tanh.default" in s["ops"])
        with_driver(browser, driver, folder, report.path, kernel)


def with_driver(browser: str, driver: str, folder: str, page: Path, kernel: int) -> None:
    """Open the page and take each picture."""
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for switch in (
        "headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync",
        "disable-background-networking", "disable-component-update", "hide-scrollbars",
        f"window-size={SIZE[0]},{SIZE[1]}", f"user-data-dir={folder}/profile",
    ):  # fmt: skip
        options.add_argument(f"--{switch}")
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        chrome.get(page.as_uri())
        shots = {
            "summary": "summary",
            "graph": f"graph/0/{kernel}",
            "kernel": f"kernel/0/{kernel}",
            "roofline": "roofline",
            "memory": "memory/1",
            "timeline": "timeline/0",
        }
        for name, view in shots.items():
            chrome.execute_script(f"location.hash = '#/{view}'")
            time.sleep(1)
            if name == "kernel":
                focus_line(chrome, "= tanh")
            save(chrome, f"report-{name}.png")
        chrome.find_element("css selector", ".brand button").click()
        chrome.execute_script(f"location.hash = '#/kernel/0/{kernel}'")
        time.sleep(1)
        focus_line(chrome, "= tanh")
        save(chrome, "report-dark.png")
    finally:
        chrome.quit()


def focus_line(chrome: webdriver.Chrome, word: str) -> None:
    """Point at the line of the IR with a word."""
    chrome.execute_script(
        "const line = [...document.querySelectorAll('.code[aria-label=IR] .line')]"
        ".find(l => l.textContent.includes(arguments[0])); line.scrollIntoView({block: 'center'});"
        "line.dispatchEvent(new MouseEvent('mouseenter')); window.scrollTo(0, 0);",
        word,
    )
    time.sleep(0.5)


def save(chrome: webdriver.Chrome, name: str) -> None:
    """Write one picture with few colors, which is a fifth of the size."""
    path = IMAGES / name
    chrome.save_screenshot(str(path))
    Image.open(path).convert("RGB").quantize(
        COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    ).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)} {path.stat().st_size // 1024} kB")


if __name__ == "__main__":
    main()
