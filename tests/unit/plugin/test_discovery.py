"""What is installed is read once, and again when that changed."""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path

from polyfuse.plugin import Requires
from polyfuse.plugin.session.discovery import find_candidates, missing_requirement


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[polyfuse.backends]\n{name} = {name}_manifest\n")
    # as if time had passed: two changes within one tick of the file system's clock look like one
    os.utime(folder, ns=(0, os.stat(folder).st_mtime_ns + 10_000_000))


def test_metadata_is_parsed_once(monkeypatch) -> None:
    before = find_candidates()
    monkeypatch.setattr(metadata, "distributions", None)
    assert before and find_candidates() == before


def test_what_is_installed_meanwhile_is_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    assert "not installed" in missing_requirement(Requires(packages=("late>=1",)))
    install(tmp_path, "late", "1.5")
    found = {candidate.name: candidate for candidate in find_candidates()}
    assert (found["late"].distribution, found["late"].version) == ("late", "1.5")
    assert missing_requirement(Requires(packages=("late>=1",))) == ""
    assert "is 1.5" in missing_requirement(Requires(packages=("late>=2",)))
    monkeypatch.undo()
    assert "late" not in {candidate.name for candidate in find_candidates()}


def test_of_two_distributions_of_a_name_the_one_that_is_imported_declares(
    tmp_path: Path, monkeypatch
) -> None:
    for folder, version in ("later", "1.0"), ("first", "2.0"):
        (tmp_path / folder).mkdir()
        install(tmp_path / folder, "twice", version)
        monkeypatch.syspath_prepend(tmp_path / folder)
    assert [c.version for c in find_candidates() if c.name == "twice"] == ["2.0"]
    (tmp_path / "first" / "twice-2.0.dist-info" / "entry_points.txt").unlink()
    os.utime(tmp_path / "first", ns=(0, 1))
    assert not [c for c in find_candidates() if c.name == "twice"]


def test_a_distribution_with_broken_metadata_costs_only_itself(
    tmp_path: Path, monkeypatch, warnings_seen
) -> None:
    install(tmp_path, "sound", "1.0")
    install(tmp_path, "broken", "1.0")
    (tmp_path / "broken-1.0.dist-info" / "entry_points.txt").write_text("[polyfuse.backends]\nno equals\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = {c.name for c in find_candidates()}
    assert "sound" in names and "broken" not in names
    assert "what distribution 'broken' declares cannot be read" in warnings_seen()[0]
