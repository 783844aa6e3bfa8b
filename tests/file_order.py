"""The order of files: workers take one at a time, so those that take longest begin first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

LONGEST = (
    "devices",
    "plugins/cpp/test_matrix_tiles.py",
    "house",
    "reliability/test_graph_cache.py",
    "plugins/cpp/test_native_host.py",
    "plugins/cpp/test_models.py",
    "plugins/triton/test_flex_attention.py",
    "unit/aot/test_operators.py",
    "reliability/test_hostile_packages.py",
    "plugins/cpp/test_matmuls.py",
    "unit/autotune/test_narrow_weights.py",
    "plugins/cpp/test_attention.py",
    "plugins/cpp/test_depthwise_gradients.py",
    "plugins/cpp/test_convolution_networks.py",
    "docs/test_snippets.py",
    "browser/test_report_page.py",
    "unit/aot/test_packages.py",
    "reliability/test_names.py",
    "plugins/cutlass/test_attention.py",
    "plugins/cpp/test_library.py",
    "conformance/test_kit.py",
    "reliability/test_choices.py",
    "models/test_regressions.py",
    "models/test_checked.py",
    "unit/frontend/test_capture.py",
    "unit/frontend/test_hard_cases.py",
    "plugins/triton/test_lookback.py",
    "plugins/cpp/test_sound_and_video.py",
    "fuzz/test_programs.py",
    "reliability/test_storms.py",
    "reliability/test_capture_cache.py",
    "plugins/triton/test_toolchain.py",
    "plugins/cpp/test_native_steps.py",
    "reliability/test_start_methods.py",
    "conformance/test_interpreter.py",
    "reliability/test_calls.py",
    "unit/autotune/test_worker.py",
    "conformance/test_lying.py",
    "plugins/cpp/test_layer_ops.py",
    "reliability/test_traced_graphs.py",
    "unit/lowering/test_index_checks.py",
    "plugins/cpp/test_kernels_plans.py",
    "unit/program/test_collectives.py",
    "plugins/triton/test_row_products.py",
    "reliability/test_lives.py",
    "conformance/test_cpp.py",
    "plugins/cuda/test_driver_calls.py",
    "plugins/cpp/test_layer_math.py",
    "unit/reporting/test_report.py",
    "unit/runtime/test_device_graphs.py",
)
"""Those that took most CPU time in a run from empty caches; the longest first."""


def longest_first(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """The tests of `LONGEST` in its order, then all others in theirs."""
    positions = {f"tests/{name}": position for position, name in enumerate(LONGEST)}
    return sorted(items, key=lambda item: positions.get(unit(item.nodeid), len(positions)))


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
