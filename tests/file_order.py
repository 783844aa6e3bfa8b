"""The order of files: workers take one at a time, so those that take longest begin first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

LONGEST = (
    "house",
    "models/test_regressions.py",
    "plugins/cpp/test_library.py",
    "plugins/cpp/test_sound_and_video.py",
    "plugins/cpp/test_models.py",
    "plugins/cpp/test_matmuls.py",
    "plugins/cpp/test_convolution_networks.py",
    "plugins/cpp/test_native_host.py",
    "devices",
    "reliability/test_names.py",
    "unit/frontend/test_complex_pairs.py",
    "unit/autotune/test_narrow_weights.py",
    "models/test_forward.py",
    "plugins/triton/test_codegen_matmul.py",
    "reliability/test_graph_cache.py",
    "unit/compiler/test_growth.py",
    "unit/lowering/test_index_checks.py",
    "conformance/test_cpp.py",
    "plugins/triton/test_codegen_interpreted.py",
    "plugins/triton/test_aliases.py",
    "reliability/test_hostile_packages.py",
    "unit/lowering/test_unusual_values.py",
    "unit/schedule/test_peak.py",
    "docs/test_snippets.py",
    "unit/lowering/test_concat_pad.py",
    "plugins/triton/test_lookback.py",
    "plugins/triton/test_flex_attention.py",
    "conformance/test_halide.py",
    "unit/compiler/test_reports.py",
    "unit/compiler/test_offered_rewrites.py",
    "models/test_operators.py",
    "plugins/cpp/test_prepacked_weights.py",
    "reliability/test_traced_graphs.py",
    "unit/aot/test_operators.py",
    "reliability/test_checking.py",
    "unit/schedule/test_accumulated_gemms.py",
    "unit/runtime/test_device_graphs.py",
    "unit/aot/test_packages.py",
    "models/test_checked.py",
    "reliability/test_calls.py",
    "unit/lowering/test_strided_slices.py",
    "unit/lowering/test_upsampling.py",
    "unit/program/test_chunked_products.py",
    "unit/schedule/test_epilogue_reductions.py",
    "unit/program/test_collectives.py",
    "reliability/test_capture_buckets.py",
    "plugins/triton/test_row_products.py",
    "unit/compiler/test_subgraphs.py",
    "plugins/triton/test_sorting.py",
    "reliability/test_lying.py",
    "plugins/cpp/test_layer_ops.py",
    "unit/lowering/test_sums_of_one.py",
    "unit/program/test_device_graphs.py",
    "unit/compiler/test_repeated.py",
    "unit/benchmarks/test_engines.py",
    "plugins/cutlass/test_attention.py",
    "reliability/test_as_eager.py",
    "plugins/triton/test_cluster_reductions.py",
    "unit/examples/test_third_party_backend.py",
    "plugins/cpp/test_byte_rows.py",
    "models/test_dynamic.py",
    "reliability/test_inputs.py",
    "unit/program/test_recorded_partitions.py",
    "unit/schedule/test_in_place_outputs.py",
    "plugins/cpp/test_residues.py",
    "unit/frontend/test_freezing.py",
    "plugins/cpp/test_neighbours.py",
    "reliability/test_capture_cache.py",
    "unit/autotune/test_few_rows.py",
    "unit/runtime/test_device_graphs_random.py",
    "plugins/triton/test_codegen_passes.py",
    "reliability/test_lives.py",
    "unit/lowering/test_functionalized.py",
    "unit/runtime/test_device_graphs_training.py",
    "unit/autotune/test_tuner.py",
    "unit/lowering/test_column_moments.py",
    "plugins/quantized/test_quantized.py",
    "reliability/test_lying_compilers.py",
    "unit/lowering/test_own_edges.py",
    "unit/lowering/test_offered.py",
    "unit/lowering/test_training.py",
    "unit/compiler/test_repeated_gradients.py",
    "unit/lowering/test_host_steps.py",
    "unit/autotune/test_worker.py",
    "unit/compiler/test_deterministic.py",
    "unit/frontend/test_layouts.py",
    "reliability/test_toolchain.py",
    "unit/lowering/test_written_conversions.py",
    "plugins/cutlass/test_transposing.py",
    "unit/schedule/test_shared_kernels.py",
    "plugins/cpp/test_native_steps.py",
    "unit/compiler/test_tuning.py",
    "plugins/cutlass/test_nvrtc.py",
    "unit/lowering/test_directly_called.py",
    "plugins/cutlass/test_epilogue_reductions.py",
    "plugins/cpp/test_extremes.py",
    "unit/frontend/test_shared_heads.py",
    "unit/reporting/test_report.py",
    "plugins/cpp/test_kernels_plans.py",
    "plugins/cpp/test_window_convolutions.py",
    "models/test_computed_sizes.py",
    "unit/frontend/test_written_views.py",
    "unit/lowering/test_pooling.py",
    "unit/autotune/test_gemm.py",
    "unit/reporting/test_scopes.py",
    "unit/program/test_pools.py",
    "unit/frontend/test_attention_rewrite.py",
    "plugins/triton/test_matmul_compiles.py",
    "plugins/cpp/test_layer_math.py",
    "plugins/halide/test_pins.py",
    "plugins/cpp/test_layer_memory.py",
    "plugins/halide/test_automatic.py",
    "reliability/test_graph_cache_functions.py",
    "plugins/cuda/test_driver_calls.py",
    "unit/program/test_partition_fallback.py",
    "reliability/test_stored_by_torch.py",
    "reliability/test_choices.py",
    "unit/compiler/test_expecting.py",
    "unit/bench/test_campaign.py",
    "unit/frontend/test_hard_cases.py",
)
"""Those that took eight seconds of CPU or more in a run on a busy machine; the longest first."""


def longest_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests of `LONGEST` in its order, then all others in theirs."""
    places = {f"tests/{name}": place for place, name in enumerate(LONGEST)}
    return sorted(items, key=lambda item: places.get(unit(item.nodeid), len(places)))


def unit(nodeid: str) -> str:
    """What one worker runs as a whole: a test's file. The house tests are one, since they share what they
    parse of all sources, and so are those of devices, whose fake one takes long to compile.
    """
    file = nodeid.partition("::")[0]
    for folder in ("tests/house", "tests/devices"):
        if file.startswith(f"{folder}/"):
            return folder
    return file


def scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each worker units."""
    from xdist.scheduler import LoadFileScheduling

    class ByUnit(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit(nodeid)

    return ByUnit(config, log)
