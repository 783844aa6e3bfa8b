"""The order of files: workers take one at a time, so those that take longest begin first."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

LONGEST = (
    "reliability/test_graph_cache.py",
    "plugins/triton/test_flex_attention.py",
    "plugins/cpp/test_models.py",
    "devices/test_fake_cuda.py",
    "plugins/triton/test_codegen_interpreted.py",
    "plugins/triton/test_lookback.py",
    "plugins/cpp/test_library.py",
    "plugins/cpp/test_matmuls.py",
    "conformance/test_halide.py",
    "unit/aot/test_operators.py",
    "plugins/triton/test_cluster_reductions.py",
    "devices/test_accelerator.py",
    "plugins/cpp/test_native_host.py",
    "plugins/triton/test_sorting.py",
    "plugins/triton/test_codegen_matmul.py",
    "reliability/test_names.py",
    "conformance/test_cpp.py",
    "plugins/cpp/test_convolution_networks.py",
    "plugins/halide/test_checks.py",
    "unit/aot/test_packages.py",
    "models/test_forward.py",
    "reliability/test_stored_by_torch.py",
    "docs/test_snippets.py",
    "unit/lowering/test_concat_pad.py",
    "reliability/test_lives.py",
    "plugins/triton/test_aliases.py",
    "reliability/test_hostile_packages.py",
    "unit/lowering/test_index_checks.py",
    "models/test_operators.py",
    "plugins/cpp/test_prepacked_weights.py",
    "unit/lowering/test_upsampling.py",
    "plugins/halide/test_automatic.py",
    "plugins/cpp/test_layer_ops.py",
    "unit/autotune/test_worker.py",
    "reliability/test_calls.py",
    "unit/compiler/test_subgraphs.py",
    "models/test_checked.py",
    "reliability/test_lying_compilers.py",
    "unit/program/test_collectives.py",
    "conformance/test_kit.py",
    "plugins/cpp/test_kernels_plans.py",
)
"""Those that took seven seconds of CPU or more, when each was measured; the longest first."""


def longest_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests of `LONGEST` in its order, then all others in theirs."""
    places = {f"tests/{name}": place for place, name in enumerate(LONGEST)}
    return sorted(items, key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
