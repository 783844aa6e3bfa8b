"""Every model family: dynamic batch and sequence."""

from __future__ import annotations

import pytest

from models import checks


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", checks.family_parameters())
def test_dynamic(name: str) -> None:
    checks.check_dynamic(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ("bert", "gpt2", "llama", "t5"))
def test_dynamic_training(name: str) -> None:
    checks.check_dynamic_training(name)
