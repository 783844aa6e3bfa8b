"""Every model family: training."""

from __future__ import annotations

import pytest

from models import checks


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", checks.family_parameters())
def test_gradients(name: str) -> None:
    checks.check_gradients(name)
