"""`polyfuse new-backend`: a distribution with a backend, to start from."""

from __future__ import annotations

import argparse
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from polyfuse.base.code import version
from polyfuse.base.errors import InvalidOptionError
from polyfuse.plugin import API_VERSION
from polyfuse.plugin.session.discovery import find_candidates

EXAMPLE = """
polyfuse new-backend mine
pip install -e ./polyfuse-mine && polyfuse conformance mine --quick
"""

_TEMPLATES = Path(__file__).parent / "templates"
_FILES = {
    "pyproject.toml": "pyproject.toml.jinja",
    "README.md": "README.md.jinja",
    ".github/workflows/test.yml": "workflow.yml.jinja",
    "{module}/__init__.py": "init.py.jinja",
    "{module}/manifest.py": "manifest.py.jinja",
    "{module}/backend.py": "backend.py.jinja",
    "tests/test_backend.py": "test_backend.py.jinja",
}
_DEVICE_FILES = {"{module}/device.py": "device.py.jinja"}
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TORCHS = ("cpu", "meta")
"""Types of device for which no plugin answers."""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add arguments."""
    parser.add_argument("name", help="of the backend: letters, digits and underscores")
    parser.add_argument(
        "--device",
        nargs="?",
        const="",
        help="write a Device too, for a device type of torch; the backend's name when no type is given",
    )
    parser.add_argument("--extension", default="", help="the module that registers that device with torch")
    parser.add_argument("--folder", type=Path, help="where to write it; polyfuse-NAME when not given")


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and say what to do next."""
    name, device = arguments.name, arguments.device
    for text in (name, device or name):
        if not _NAME.fullmatch(text):
            raise InvalidOptionError(f"{text!r} is no name", "use a-z, 0-9 and _, and begin with a letter")
    taken = _taken(name)
    if taken:
        raise InvalidOptionError(taken, "choose another name")
    if device in _TORCHS:
        raise InvalidOptionError(f"torch itself has the device type {device!r}", "leave out --device")
    if arguments.extension and device is None:
        raise InvalidOptionError("--extension is for a device", "add --device")
    folder: Path = arguments.folder or Path(f"polyfuse-{name.replace('_', '-')}")
    if folder.exists() and any(folder.iterdir()):
        raise InvalidOptionError(f"the folder {folder} is not empty", "choose another with --folder")
    facts = {
        "name": name,
        "module": f"polyfuse_{name}",
        "distribution": f"polyfuse-{name.replace('_', '-')}",
        "title": "".join(part.capitalize() for part in name.split("_")),
        "device": (device or name) if device is not None else "",
        "extension": arguments.extension,
        "api": API_VERSION,
        "polyfuse": version().partition("+")[0],
    }
    files = {**_FILES, **(_DEVICE_FILES if facts["device"] else {})}
    for path, template in files.items():
        target = folder / path.format(module=facts["module"])
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_rendered(template, facts), encoding="utf-8")
        print(target)
    where = f" --device {facts['device']}" if facts["device"] else ""
    shown = folder if folder.is_absolute() else f"./{folder}"
    print(f"next: pip install -e {shown} && polyfuse conformance {name}{where} --quick")
    return 0


def _taken(name: str) -> str:
    """What is installed under a name that the new distribution would have; empty: nothing."""
    for candidate in find_candidates():
        if candidate.name == name:
            return f"distribution {candidate.distribution!r} has a plugin named {name!r}"
    module = f"polyfuse_{name}"
    return f"there is a module {module!r}" if find_spec(module) is not None else ""


def _rendered(template: str, facts: dict[str, Any]) -> str:
    import jinja2  # torch needs it too

    text = (_TEMPLATES / template).read_text(encoding="utf-8")
    made = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    ).from_string(text)
    return made.render(facts)
