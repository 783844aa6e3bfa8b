"""Options of torch's own compiler are translated, or ignored with one warning."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from polyfuse.base.errors import InvalidOptionError
from polyfuse.base.log import reset_warned
from polyfuse.base.settings import Settings, option_infos
from polyfuse.compiler.reports.report import last_reports, reset_reports
from polyfuse.plugin.session.discovery import find_candidates
from polyfuse.torch_compat.options.counterparts import COUNTERPARTS, inductor_options, translated

TRANSLATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "cuda graphs": ({"triton.cudagraphs": True}, {"device_graphs": True}),
    "autotuning": ({"max_autotune": True}, {"gemm": "fastest", "tune_kernels": True}),
    "off": ({"max_autotune": False, "shape_padding": False, "freezing_discard_parameters": False}, {}),
    "descent": ({"coordinate_descent_tuning": True}, {"tune_kernels": True}),
    "already so": ({"prologue_fusion": True, "fallback_random": True}, {}),
    "epilogues": (
        {"epilogue_fusion": False, "epilogue_fusion_first": False},
        {"epilogue_fusion": False, "epilogue_first": False},
    ),
    "another type": ({"deterministic": True}, {"deterministic": "on"}),
    "ours": ({"deterministic": "auto", "strict": True}, {"deterministic": "auto", "strict": True}),
    "both": ({"gemm": "library", "max_autotune_gemm": True}, {"gemm": "library"}),
    "reversed": ({"implicit_fallbacks": False}, {"strict": True}),
    "of a plugin": ({"triton.debug": 1, "cpp.isa": "avx2"}, {"triton.debug": 1, "cpp.isa": "avx2"}),
}


@pytest.mark.parametrize("name", TRANSLATIONS)
def test_options_are_translated(name, caplog):
    reset_warned()
    given, wanted = TRANSLATIONS[name]
    assert translated(given) == wanted
    assert not caplog.records


def test_what_has_no_counterpart_is_ignored_with_one_warning(caplog):
    reset_warned()
    given = {"shape_padding": True, "triton.multi_kernel": 1, "prologue_fusion": False, "strict": True}
    given |= {"precompilation_timeout_seconds": 9}
    for _ in range(2):
        assert translated(given) == {"strict": True}
    (record,) = caplog.records
    for word in ("shape_padding=True", "triton.multi_kernel=1", "prologue_fusion=False", "seconds=9"):
        assert word in record.getMessage()


def test_options_of_a_group_that_extends_another_are_known():
    """That of CUDA extends that of CUTLASS in newer versions."""
    assert {"cuda.arch", "cuda.cutlass_dir", "cuda.compile_opt_level"} <= inductor_options()


def test_a_text_is_no_truth_value():
    for name in ("freezing", "search_autotune_cache"):
        with pytest.raises(InvalidOptionError, match="use True or False"):
            Settings.resolve(None, translated({name: "no"}))


def test_names_that_neither_knows_are_refused():
    with pytest.raises(Exception, match="fusoin"):
        torch.compile(lambda x: x + 1, backend="polyfuse", options={"fusoin": True})(torch.ones(2))


@pytest.mark.parametrize("row", COUNTERPARTS, ids=lambda row: row.names[0])
def test_values_that_are_translated_are_values_of_ours(row):
    for value in (True, False):
        found = row.meaning(value) or {}
        kinds = {name: option_infos()[name].kind for name in found}
        plain = {name: found[name] for name, kind in kinds.items() if not kind.startswith("int")}
        Settings.resolve(None, plain)
        assert set(found) <= {*row.ours, "strict"}


def test_options_of_plugins_are_not_mistaken_for_those_of_torch():
    from polyfuse.plugin.session.manager import PluginManager

    states = PluginManager(Settings.resolve()).states()
    ours = {f"{s.name}.{option}" for s in states if s.manifest is not None for option in s.manifest.options}
    assert ours and find_candidates() and not ours & inductor_options()


def test_a_script_of_inductor_runs():
    reset_reports()
    options = {"triton.cudagraphs": False, "epilogue_fusion": True, "emulate_precision_casts": True}
    x = torch.randn(4, 5)
    found = torch.compile(lambda x: x.sin().sum(-1), backend="polyfuse", options=options)(x)
    torch.testing.assert_close(found, x.sin().sum(-1))
    assert last_reports()
