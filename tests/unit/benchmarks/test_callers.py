"""The campaign of several callers at once: what is measured, and how the page says it."""

from __future__ import annotations

import threading

import torch
from polyfuse_bench import callers, campaigns, report, report_callers
from polyfuse_bench.backends import DEFAULT_BACKENDS, OPENVINO


def test_each_number_of_callers_is_counted(monkeypatch):
    """Every candidate by every number of threads, each of which has a request of OpenVINO of its own."""
    threads: dict[str, set[int]] = {"eager": set(), "polyfuse": set(), OPENVINO: set()}

    def engine(prepared, name, folder):
        if name == "onnxruntime":
            raise ImportError("not installed")

        def call():
            assert not torch.is_grad_enabled()
            threads[name].add(threading.get_ident())
            return [torch.ones(2)]

        return call

    def requests(prepared):
        def request():
            owner = threading.get_ident()

            def call():
                assert threading.get_ident() == owner
                threads[OPENVINO].add(owner)
                return [torch.ones(2)]

            return call

        return request

    monkeypatch.setattr(callers, "engine", engine)
    monkeypatch.setattr(callers, "openvino_requests", requests)
    names = ("eager", OPENVINO, "onnxruntime", "polyfuse")
    task = {
        "name": "chain",
        "size": "tiny",
        "backends": names,
        "callers": (1, 3),
        "rounds": 2,
        "seconds": 0.002,
    }
    row = callers.measure(task)
    assert list(row["rates"]) == ["eager", OPENVINO, "polyfuse"]
    assert row["failures"] == {"onnxruntime": "ImportError: not installed"}
    for name, rates in row["rates"].items():
        assert {count: len(samples) for count, samples in rates.items()} == {"1": 2, "3": 2}
        assert all(sample > 0 for samples in rates.values() for sample in samples)
        assert len(threads[name]) > 1 and row["errors"][name] == 0


def test_the_table(monkeypatch):
    monkeypatch.setattr(report_callers, "facts", lambda content: [])
    rates = {
        "eager": {"1": [10.0], "2": [5.0]},
        "openvino": {"1": [100.0, 120.0, 2000.0], "2": [240.0]},
        "polyfuse:freezing": {"1": [150.0], "2": [300.0]},
    }
    row = {"name": "chain", "rates": rates, "failures": {}}
    content = {"rows": [row], "callers": [1, 2], "engines": {"openvino": "2026.1"}}
    text = "\n".join(report_callers.callers_section(content))
    assert "| network | by | 1 caller | 2 callers |" in text and "openvino 2026.1" in text
    assert "| chain | OpenVINO | 120 | 240 | 2.00× |  |" in text
    assert "| chain | Polyfuse freezing | 150 | 300 | 2.00× | 1.25× |" in text
    assert "eager 10/5 calls a second" in report.one_line("callers", row)


def test_the_campaign():
    selection = campaigns.Selection(backends=DEFAULT_BACKENDS, only=("bert",))
    (measured,) = campaigns.callers(selection)
    assert measured.args[0]["backends"] == callers.CANDIDATES
    assert measured.args[0]["callers"] == (1, 2, 4, 8)
