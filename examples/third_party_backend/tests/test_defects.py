"""Whether the tests would notice an error that the backend makes."""

import pytest
import torch

from polyfuse.testing import planted

MET = ("index-off-by-one", "swapped-operands", "stale-row", "reduction-start", "tail-unwritten")


def test_softmax():
    x = torch.randn(33, 8)
    compiled = torch.compile(torch.nn.Softmax(-1), backend="polyfuse", options={"backends": ["numpy"]})
    torch.testing.assert_close(compiled(x), x.softmax(-1))


@pytest.mark.parametrize("defect", MET)
def test_the_tests_would_notice(defect):
    with planted("numpy", defect), pytest.raises(AssertionError):
        test_softmax()
