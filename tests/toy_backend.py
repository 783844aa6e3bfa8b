"""A backend for tests of the machinery: its language is text, and a kernel appends its text to a list."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from polyfuse.base.errors import KernelBuildError, UnsupportedError
from polyfuse.base.settings import Settings
from polyfuse.plugin import Backend, Claim, Source, Yes


def source(text: str, name: str = "kernel") -> Source:
    return Source(name=name, text=text, language="toy")


def build_files(sources: Sequence[Source], folder: Path, options: Mapping[str, object]) -> None:
    """Used by worker processes and by the backend itself. Texts starting with certain words misbehave."""
    for item in sources:
        if item.text.startswith("bad"):
            raise KernelBuildError("it is bad", "make it good", command=("toycc", "-x"), output="line 1: bad")
        if item.text.startswith("refuse"):
            raise UnsupportedError("not in this configuration", "take another")
        if item.text.startswith("raise"):
            raise RuntimeError("surprise")
        if item.text.startswith("crash"):
            os._exit(7)
        if item.text.startswith("sleep"):
            time.sleep(60)
    if "count" in options:
        with open(str(options["count"]), "a") as stream:
            stream.write("".join(f"{item.key}\n" for item in sources))
    content = {item.key: item.text for item in sources}
    (folder / "kernels.json").write_text(json.dumps(content))


class Appender:
    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, *args: object) -> None:
        target = args[0]
        assert isinstance(target, list)
        target.append(self.text)


class ToyBackend(Backend):
    name = "toy"

    def __init__(self, settings: Settings, count: Path | None = None) -> None:
        super().__init__(settings)
        self.count = count
        self.loads = 0

    def claims(self, node: object) -> Claim:
        return Yes()

    def emit(self, kernel: object, config: object = None) -> Source:
        return source(str(kernel))

    def worker_options(self) -> Mapping[str, object]:
        return {"count": str(self.count)} if self.count else {}

    def build(self, sources: Sequence[Source], folder: Path) -> None:
        build_files(sources, folder, self.worker_options())

    def load(self, folder: Path) -> Mapping[str, Appender]:
        self.loads += 1
        content = json.loads((folder / "kernels.json").read_text())
        return {key: Appender(text) for key, text in content.items()}

    def describe(self) -> Mapping[str, str]:
        return {"toycc": "1.0"}


class ProcessBackend(ToyBackend):
    """The same, built in worker processes."""

    name = "toy-process"
    spawns_compiler = False
    worker = "toy_backend:build_files"


def note_start(options: Mapping[str, object]) -> None:
    """What `StartedBackend` has its workers do first: leave a line."""
    with open(f"{options['count']}.started", "a") as stream:
        stream.write(f"{os.getpid()}\n")


class StartedBackend(ProcessBackend):
    """The same, with workers that prepare themselves."""

    worker_start = "toy_backend:note_start"
