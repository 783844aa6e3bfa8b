"""Indices out of range in packages that run without Python: an error with the words of the exception."""

from __future__ import annotations

import torch

from native_runner import call
from polyfuse.aot import package
from requirements import needs_gcc


class Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(10, 6)

    def forward(self, index: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.table(index)[rows] * 2


@needs_gcc
def test_a_native_package_says_what_is_out_of_range(tmp_path):
    model = Table().eval()
    good = torch.tensor([9, 0, 1]), torch.tensor([-3, 2])
    path = package(torch.export.export(model, good), path=tmp_path / "table.pf", native=True)
    calls = [good, (torch.tensor([9, 0, 10]), good[1]), (good[0], torch.tensor([-4, 2])), good]
    first, table, rows, last = call(path, calls)
    assert table.error.endswith("IndexError: index out of range in self")
    assert rows.error.endswith("IndexError: index -4 is out of bounds for dimension 0 with size 3")
    for found in (first, last):
        torch.testing.assert_close(found.results[0], model(*good))
