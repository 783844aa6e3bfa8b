"""The order of files: workers take one at a time, so those that take longest begin first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

LONGEST = (
    "devices",
    "house",
    "reliability/test_graph_cache.py",
    "plugins/cpp/test_models.py",
    "plugins/cpp/test_convolution_networks.py",
    "plugins/cpp/test_attention.py",
    "plugins/cpp/test_matrix_tiles.py",
    "plugins/cpp/test_matmuls.py",
    "reliability/test_hostile_packages.py",
    "reliability/test_names.py",
    "unit/aot/test_frozen_packages.py",
    "plugins/cpp/test_sound_and_video.py",
    "unit/aot/test_packages.py",
    "plugins/quantized/test_products.py",
    "models/test_regressions.py",
    "plugins/cpp/test_native_host.py",
    "unit/autotune/test_narrow_weights.py",
    "plugins/cpp/test_kernels_plans.py",
    "unit/compiler/test_tuning.py",
    "plugins/cuda/test_driver_calls.py",
    "unit/runtime/test_device_graphs.py",
    "plugins/cpp/test_layer_ops.py",
    "reliability/test_inputs.py",
    "unit/aot/test_operators.py",
    "reliability/test_toolchain.py",
    "reliability/test_choices.py",
    "reliability/test_checking.py",
    "plugins/cpp/test_library.py",
    "plugins/triton/test_flex_attention.py",
    "unit/program/test_collectives.py",
    "models/test_checked.py",
    "reliability/test_capture_cache.py",
    "unit/frontend/test_hard_cases.py",
    "unit/lowering/test_index_checks.py",
    "plugins/quantized/test_integer_matmuls.py",
    "plugins/triton/test_toolchain.py",
    "plugins/cpp/test_byte_rows.py",
    "models/test_dynamic.py",
    "reliability/test_lives.py",
    "reliability/test_views_of_results.py",
    "reliability/test_lying_compilers.py",
    "plugins/triton/test_whole_path.py",
    "unit/autotune/test_worker.py",
    "unit/frontend/test_causal_masks.py",
    "unit/autotune/test_decisions.py",
    "reliability/test_traced_graphs.py",
    "conformance/test_kit.py",
    "unit/compiler/test_subgraphs.py",
    "plugins/cpp/test_wrong_results.py",
    "conformance/test_interpreter.py",
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
