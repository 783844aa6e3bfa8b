"""Every model family: inference."""

from __future__ import annotations

import pytest

from models import checks


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", checks.family_parameters())
def test_forward(name: str) -> None:
    checks.check_forward(name)
