"""`polyfuse.integrations.accelerate.register`: with accelerate if it is installed, and with a list alike."""

from __future__ import annotations

import copy
import enum
import sys
import types

import pytest
import torch

from polyfuse.base.errors import UnsupportedError
from polyfuse.integrations.accelerate import register


class Backend(enum.StrEnum):
    NO = "NO"
    EAGER = "EAGER"


@pytest.fixture
def members(monkeypatch):
    """accelerate with a list of its own, put in place by the test."""

    def put(found: object) -> None:
        module = types.ModuleType("accelerate.utils.dataclasses")
        module.DynamoBackend = found  # type: ignore[attr-defined]
        for name in ("accelerate", "accelerate.utils"):
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setitem(sys.modules, module.__name__, module)

    return put


def test_the_name_is_added_once(members):
    members(Backend)
    for _ in range(2):
        register()
    assert [member.value for member in Backend] == ["NO", "EAGER", "POLYFUSE"]
    member = Backend("POLYFUSE")
    assert member is Backend.POLYFUSE is Backend["POLYFUSE"] is copy.deepcopy(member)
    assert member == "POLYFUSE" and member.value.lower() in torch._dynamo.list_backends()


def test_a_list_of_another_form_is_refused_with_what_works_instead(members):
    members(("NO", "EAGER"))
    with pytest.raises(UnsupportedError, match=r"model\.compile"):
        register()


def test_accelerate_takes_the_name():
    pytest.importorskip("accelerate", reason="accelerate is not installed; pip install accelerate")
    from accelerate.utils import DynamoBackend, TorchDynamoPlugin

    register()
    assert TorchDynamoPlugin(backend="polyfuse").to_kwargs()["backend"] == "polyfuse"
    assert DynamoBackend("POLYFUSE") in list(DynamoBackend)
