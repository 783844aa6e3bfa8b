"""The order of files: workers take one at a time, so those that take longest begin first."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

LONGEST = (
    "plugins/cpp/test_matmuls.py",
    "reliability/test_graph_cache.py",
    "conformance/test_cpp.py",
    "conformance/test_halide.py",
    "models/test_operators.py",
    "docs/test_snippets.py",
    "plugins/cpp/test_convolution_networks.py",
    "plugins/cpp/test_library.py",
    "plugins/cpp/test_models.py",
    "plugins/cpp/test_residues.py",
    "plugins/triton/test_codegen_interpreted.py",
    "plugins/triton/test_flex_attention.py",
    "plugins/triton/test_codegen_matmul.py",
    "devices/test_fake_cuda.py",
    "devices/test_accelerator.py",
    "reliability/test_choices.py",
    "reliability/test_names.py",
    "reliability/test_stored_by_torch.py",
    "reliability/test_lives.py",
    "unit/aot/test_operators.py",
    "unit/autotune/test_worker.py",
    "unit/lowering/test_upsampling.py",
    "unit/lowering/test_index_checks.py",
    "unit/program/test_collectives.py",
    "models/test_regressions.py",
)
"""Those that take more than ten seconds."""


def longest_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests of `LONGEST` in its order, then all others in theirs."""
    places = {f"tests/{name}": place for place, name in enumerate(LONGEST)}
    return sorted(items, key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
