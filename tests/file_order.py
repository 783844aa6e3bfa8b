"""The order of files: workers take one at a time, so those that take longest begin first."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

LONGEST = (
    "models/test_regressions.py",
    "plugins/cpp/test_models.py",
    "plugins/triton/test_flex_attention.py",
    "reliability/test_graph_cache.py",
    "conformance/test_halide.py",
    "unit/lowering/test_column_moments.py",
    "devices/test_fake_cuda.py",
    "plugins/cpp/test_matmuls.py",
    "plugins/cpp/test_library.py",
    "plugins/cpp/test_native_host.py",
    "plugins/triton/test_lookback.py",
    "unit/benchmarks/test_engines.py",
    "plugins/cpp/test_convolution_networks.py",
    "reliability/test_names.py",
    "plugins/cpp/test_sound_and_video.py",
    "plugins/triton/test_codegen_interpreted.py",
    "unit/lowering/test_strided_slices.py",
    "conformance/test_cpp.py",
    "models/test_forward.py",
    "plugins/triton/test_row_products.py",
    "reliability/test_store.py",
    "docs/test_snippets.py",
    "unit/compiler/test_subgraphs.py",
    "reliability/test_hostile_packages.py",
    "unit/lowering/test_functionalized.py",
    "unit/aot/test_operators.py",
    "plugins/cpp/test_neighbours.py",
    "plugins/triton/test_codegen_passes.py",
    "reliability/test_capture_cache.py",
    "plugins/triton/test_codegen_matmul.py",
    "plugins/triton/test_sorting.py",
    "unit/compiler/test_growth.py",
    "unit/aot/test_packages.py",
    "unit/lowering/test_index_checks.py",
    "unit/frontend/test_layouts.py",
    "unit/frontend/test_repeated.py",
    "browser/test_report_page.py",
    "unit/lowering/test_concat_pad.py",
    "unit/frontend/test_written_views.py",
    "unit/lowering/test_dynamic.py",
    "reliability/test_inputs.py",
    "devices/test_accelerator.py",
    "plugins/cpp/test_native_steps.py",
    "plugins/cpp/test_prepacked_weights.py",
    "models/test_operators.py",
    "fuzz/test_seeds.py",
    "plugins/triton/test_families.py",
    "plugins/cpp/test_byte_rows.py",
    "unit/lowering/test_pooling.py",
    "plugins/test_float8.py",
    "plugins/halide/test_checks.py",
    "plugins/triton/test_toolchain.py",
    "unit/lowering/test_families.py",
    "plugins/triton/test_matmul_compiles.py",
    "models/test_checked.py",
    "reliability/test_lives.py",
    "plugins/cpp/test_layer_memory.py",
    "unit/lowering/test_upsampling.py",
    "plugins/cpp/test_kernels_plans.py",
    "plugins/cpp/test_residues.py",
    "plugins/triton/test_cluster_reductions.py",
    "unit/frontend/test_own_layouts.py",
    "unit/autotune/test_worker.py",
    "reliability/test_calls.py",
)
"""Those that took seven seconds or more, of CPU or of waiting, when all were measured; the longest first."""


def longest_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests of `LONGEST` in its order, then all others in theirs."""
    places = {f"tests/{name}": place for place, name in enumerate(LONGEST)}
    return sorted(items, key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
