from __future__ import annotations

import logging

import pytest

from polyfuse.base.log import configure, get_logger, warn_once


def test_logger_names():
    assert get_logger("schedule").name == "polyfuse.schedule"
    assert get_logger("polyfuse.schedule").name == "polyfuse.schedule"
    assert get_logger("").name == "polyfuse"


def test_warn_once(warnings_seen):
    assert warn_once("a", "x") and not warn_once("a", "x")
    assert warn_once("b", "x") and not warn_once("b", "y", key="x")
    assert warnings_seen() == ["x", "x"]


def test_configure_refuses_unknown_levels():
    with pytest.raises(ValueError, match="LOUD"):
        configure("schedule=loud")


def test_configure(monkeypatch):
    root = logging.getLogger("polyfuse")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "propagate", True)
    try:
        configure("test_area=debug")
        assert logging.getLogger("polyfuse.test_area").level == logging.DEBUG
        assert len(root.handlers) == 1
    finally:
        logging.getLogger("polyfuse.test_area").setLevel(logging.NOTSET)
