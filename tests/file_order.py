"""The order of files: workers take one at a time, so those that take longest begin first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

LONGEST = (
    "models/test_regressions.py",
    "reliability/test_graph_cache.py",
    "reliability/test_calls.py",
    "plugins/cpp/test_models.py",
    "plugins/cpp/test_matmuls.py",
    "plugins/cpp/test_library.py",
    "house",
    "plugins/cpp/test_native_host.py",
    "unit/autotune/test_narrow_weights.py",
    "conformance/test_cpp.py",
    "reliability/test_lives.py",
    "plugins/triton/test_flex_attention.py",
    "reliability/test_capture_cache.py",
    "reliability/test_inputs.py",
    "devices/test_fake_cuda.py",
    "models/test_operators.py",
    "plugins/halide/test_checks.py",
    "plugins/cpp/test_convolution_networks.py",
    "plugins/cpp/test_sound_and_video.py",
    "unit/frontend/test_complex_pairs.py",
    "plugins/triton/test_lookback.py",
    "reliability/test_capture_buckets.py",
    "unit/lowering/test_index_checks.py",
    "unit/autotune/test_worker.py",
    "plugins/triton/test_matmul_compiles.py",
    "unit/lowering/test_strided_slices.py",
    "unit/frontend/test_own_layouts.py",
    "unit/lowering/test_upsampling.py",
    "plugins/triton/test_toolchain.py",
    "conformance/test_halide.py",
    "unit/frontend/test_written_views.py",
    "reliability/test_names.py",
    "reliability/test_traced_graphs.py",
    "models/test_forward.py",
    "models/test_checked.py",
    "unit/lowering/test_concat_pad.py",
    "plugins/cpp/test_prepacked_weights.py",
    "plugins/cpp/test_byte_rows.py",
    "plugins/cpp/test_native_steps.py",
    "plugins/cpp/test_neighbours.py",
    "plugins/triton/test_codegen_interpreted.py",
    "plugins/cpp/test_layer_memory.py",
    "unit/program/test_collectives.py",
    "plugins/test_float8.py",
    "plugins/triton/test_families.py",
    "unit/runtime/test_device_graphs_training.py",
    "unit/runtime/test_device_graphs.py",
    "devices/test_accelerator.py",
    "unit/aot/test_operators.py",
    "plugins/cpp/test_kernels_plans.py",
    "plugins/triton/test_sorting.py",
    "plugins/cpp/test_extremes.py",
    "unit/lowering/test_column_moments.py",
    "reliability/test_as_eager.py",
    "reliability/test_store.py",
    "reliability/test_soak.py",
    "docs/test_snippets.py",
    "plugins/triton/test_cluster_reductions.py",
    "fuzz/test_seeds.py",
    "reliability/test_lying.py",
    "plugins/cpp/test_residues.py",
    "browser/test_report_page.py",
    "unit/compiler/test_tuning.py",
    "plugins/triton/test_row_products.py",
    "unit/compiler/test_growth.py",
    "unit/lowering/test_functionalized.py",
    "reliability/test_hostile_packages.py",
    "unit/aot/test_packages.py",
    "plugins/halide/test_without_compiler.py",
    "reliability/test_graph_cache_functions.py",
    "unit/lowering/test_own_edges.py",
    "unit/lowering/test_pooling.py",
    "unit/benchmarks/test_engines.py",
    "unit/compiler/test_subgraphs.py",
    "plugins/triton/test_codegen_passes.py",
    "plugins/triton/test_codegen_matmul.py",
    "unit/frontend/test_layouts.py",
    "unit/frontend/test_repeated.py",
)
"""Those that took eight seconds of CPU or more in a run on a busy machine; the longest first."""


def longest_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests of `LONGEST` in its order, then all others in theirs."""
    places = {f"tests/{name}": place for place, name in enumerate(LONGEST)}
    return sorted(items, key=lambda item: places.get(unit(item.nodeid), len(places)))


def unit(nodeid: str) -> str:
    """What one worker runs as a whole: a test's file. The house tests are one, since they share what they
    parse of all sources.
    """
    file = nodeid.partition("::")[0]
    return "tests/house" if file.startswith("tests/house/") else file


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each worker units."""
    from xdist.scheduler import LoadFileScheduling

    class ByUnit(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    return ByUnit(config, log)
