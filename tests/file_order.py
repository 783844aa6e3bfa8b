"""The order of files: workers take one at a time, so those that take longest begin first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

LONGEST = (
    "house",
    "devices",
    "reliability/test_graph_cache.py",
    "plugins/triton/test_flex_attention.py",
    "plugins/cpp/test_models.py",
    "models/test_regressions.py",
    "reliability/test_hostile_packages.py",
    "plugins/cpp/test_native_host.py",
    "unit/aot/test_operators.py",
    "plugins/cpp/test_library.py",
    "plugins/triton/test_lookback.py",
    "plugins/cpp/test_matmuls.py",
    "reliability/test_lives.py",
    "browser/test_report_page.py",
    "reliability/test_traced_graphs.py",
    "plugins/triton/test_codegen_matmul.py",
    "unit/program/test_collectives.py",
    "unit/aot/test_packages.py",
    "reliability/test_names.py",
    "conformance/test_kit.py",
    "reliability/test_capture_cache.py",
    "plugins/triton/test_row_products.py",
    "unit/lowering/test_index_checks.py",
    "plugins/cpp/test_sound_and_video.py",
    "reliability/test_inputs.py",
    "plugins/triton/test_sorting.py",
    "plugins/cpp/test_neighbours.py",
    "reliability/test_as_eager.py",
    "plugins/cpp/test_convolution_networks.py",
    "docs/test_snippets.py",
    "unit/runtime/test_device_graphs_training.py",
    "plugins/cpp/test_native_steps.py",
    "plugins/triton/test_cluster_reductions.py",
    "models/test_checked.py",
    "unit/lowering/test_upsampling.py",
    "models/test_forward.py",
    "reliability/test_capture_buckets.py",
    "plugins/cutlass/test_transposing.py",
    "unit/autotune/test_narrow_weights.py",
    "plugins/cpp/test_layer_math.py",
    "unit/frontend/test_layouts.py",
    "models/test_operators.py",
    "plugins/cpp/test_residues.py",
    "reliability/test_storms.py",
    "unit/runtime/test_device_graphs_random.py",
    "unit/benchmarks/test_engines.py",
)
"""Those that took a worker longest in a run from empty caches; the longest first."""


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
