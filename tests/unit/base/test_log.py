from __future__ import annotations

import logging
import re

import pytest

from house.source_tree import CORE
from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.log import AREAS, configure, get_logger, reset_warned, warn_once


def test_logger_names():
    assert get_logger("schedule").name == "polyfuse.schedule"
    assert get_logger("polyfuse.schedule").name == "polyfuse.schedule"
    assert get_logger("").name == "polyfuse"


def test_warn_once(warnings_seen):
    assert warn_once("a", "x") and not warn_once("a", "x")
    assert warn_once("b", "x") and not warn_once("b", "y", key="x")
    assert warnings_seen() == ["x", "x"]


def test_the_first_warning_says_how_to_silence_them(monkeypatch, capsys):
    """Where nobody has set up logging; others know their loggers."""
    reset_warned()
    monkeypatch.setattr(logging.Logger, "hasHandlers", lambda self: False)
    warn_once("cache", "one")
    warn_once("cache", "two")
    assert capsys.readouterr().err.count("POLYFUSE_LOG=error silences them") == 1
    reset_warned()
    logger = logging.getLogger("polyfuse.cache")
    logger.setLevel(logging.ERROR)
    try:
        warn_once("cache", "one")
    finally:
        logger.setLevel(logging.NOTSET)
    assert capsys.readouterr().err == ""


def test_configure_refuses_unknown_levels():
    with pytest.raises(InvalidOptionError, match="level 'loud', which does not exist"):
        configure("schedule=loud")


def test_configure_refuses_areas_that_log_nothing():
    with pytest.raises(InvalidOptionError, match="names 'shedule', which logs nothing; use schedule"):
        configure("shedule=debug", ["toy"])


def test_every_area_that_logs_is_known():
    used = {
        area
        for path in CORE.rglob("*.py")
        for area in re.findall(r'(?:get_logger|warn_once)\(\s*"(\w+)"', path.read_text(encoding="utf-8"))
    }
    assert used <= set(AREAS)


def test_configure(monkeypatch):
    root = logging.getLogger("polyfuse")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "propagate", True)
    try:
        configure("test_area=debug", ["test_area"])
        assert logging.getLogger("polyfuse.test_area").level == logging.DEBUG
        assert len(root.handlers) == 1
    finally:
        logging.getLogger("polyfuse.test_area").setLevel(logging.NOTSET)
