from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import polyfuse.plugin as door
from polyfuse.base.settings import Settings
from polyfuse.plugin import Config, No, Source, Yes, all_of
from toy_backend import ToyBackend, source


def test_claims():
    assert Yes() and not No("why")
    assert all_of(Yes(), No("first"), No("second")) == No("first")
    assert all_of() == Yes()


def test_source_keys_ignore_the_name_and_outer_space():
    assert source("a", "one").key == source(" a\n", "two").key
    assert source("a").key != Source("k", "a", "other").key != Source("k", "a", "other", meta="m").key
    item = Source("k", f"void {Source.SYMBOL}()", "toy")
    assert item.rendered() == f"void {item.symbol}()" and item.symbol.isidentifier()
    assert item.renamed("n") == dataclasses.replace(item, name="n")


def test_config():
    config = Config.of(block=16, warps=4)
    assert config.get("warps") == 4 and config.get("other", 1) == 1 and str(config) == "block=16 warps=4"


def test_backend_defaults():
    backend = ToyBackend(Settings())
    assert backend.host(None) is None and backend.configs(None) == ()
    assert backend.benchmark(lambda *_: None, ()) >= 0
    assert backend.neighbours(None, Config()) == () and backend.review(Path(), "key") == Yes()
    assert list(backend.machine()) == ["machine"] and backend.min_unit > 1 and not backend.worker_start


def test_everything_named_public_exists():
    for name in door.__all__:
        assert hasattr(door, name)


def test_a_choice_says_what_it_is():
    def anything(*_: object) -> Yes:
        return Yes()

    with pytest.raises(ValueError, match="either `instead` or `emit`"):
        door.Choice("one", ("aten.mm.out",), anything)
    with pytest.raises(ValueError, match="nothing is known without timing"):
        door.Choice("one", ("aten.mm.out",), anything, emit=lambda *_: None, preferred=lambda _: True)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match="one word"):
        door.Choice("one two", ("aten.mm.out",), anything, instead=lambda _: None)  # type: ignore[arg-type,return-value]
