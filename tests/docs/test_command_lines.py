"""Command lines of `polyfuse` on pages are understood by the commands, option by option."""

from __future__ import annotations

import argparse
import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from docs.test_pages import PAGES
from house.source_tree import ROOT
from polyfuse.cli import COMMANDS


def command_lines(page: Path) -> list[list[str]]:
    """What follows `polyfuse` on each line of a shell block, without variables and pipes."""
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.partition(" | ")[0], comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                words = words[1:]
            if words[:1] == ["polyfuse"] and len(words) > 1:
                found.append(words[1:])
    return found


WITH_COMMANDS = [page for page in PAGES if command_lines(page)]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_understood(page: Path) -> None:
    wrong = []
    for name, *words in command_lines(page):
        parser = argparse.ArgumentParser(exit_on_error=False)
        import_module(COMMANDS[name][0]).configure(parser)
        try:
            parser.parse_args(words)
        except (SystemExit, argparse.ArgumentError) as error:
            wrong.append(f"polyfuse {name} {shlex.join(words)}: {error}")
    assert not wrong, "\n".join(wrong)


def test_a_wrong_option_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nPOLYFUSE_LOG=info polyfuse cache info --never | head  # why\n```\n", encoding="utf-8"
    )
    assert command_lines(page) == [["cache", "info", "--never"]]
    parser = argparse.ArgumentParser()
    import_module(COMMANDS["cache"][0]).configure(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["info", "--never"])
