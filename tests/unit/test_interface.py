"""The public Python interface: its names and signatures are frozen, and they do what they say."""

from __future__ import annotations

import inspect
from dataclasses import fields

import torch

import polyfuse

FROZEN = (
    """
choices(fn, *args, mode='max-autotune', options=None)
compile(fn, *, mode=None, options=None, dynamic=None, fullgraph=False)
debug_folder(*, keep=False)
explain(fn, *, mode=None, options=None, dynamic=None)
fresh_cache(parent=None, *, keep=False)
get_code(fn, *args, mode=None, options=None, dynamic=None, **kwargs)
metrics()
observing(observer)
polyfuse(gm, example_inputs, *, options=None, mode=None)
report(fn, file='polyfuse-report.html', *, mode=None, options=None, dynamic=None, json=None,
 compare_with=None)
reset()
run_and_get_code(fn, *args, mode=None, options=None, dynamic=None, **kwargs)
""".strip()
    .replace(",\n ", ", ")
    .splitlines()
)

NAMES = [
    "__version__",
    "cache",
    "choices",
    "compile",
    "debug_folder",
    "explain",
    "fresh_cache",
    "get_code",
    "metrics",
    "observing",
    "polyfuse",
    "report",
    "reset",
    "run_and_get_code",
]

METRICS = """
graphs programs operators kernels library_calls fallbacks bytes_before bytes_after compile_seconds cache_hits
cache_misses cache_bypasses
"""

CACHE = """
GraphFolder KernelStore Located cache_root compiled_key graph_counts graph_key kernel_key unit_key
writable_root
"""


def bare(signature: inspect.Signature) -> inspect.Signature:
    """A signature without types."""
    empty = inspect.Parameter.empty
    parameters = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)


def test_names_and_signatures_are_frozen():
    """Who changes them breaks programs: say so in the changelog, and change this list."""
    assert sorted(polyfuse.__all__) == NAMES
    functions = [name for name in NAMES if inspect.isfunction(getattr(polyfuse, name))]
    assert [f"{name}{bare(inspect.signature(getattr(polyfuse, name)))}" for name in functions] == FROZEN
    assert [field.name for field in fields(polyfuse.metrics())] == METRICS.split()
    assert sorted(polyfuse.cache.__all__) == sorted(CACHE.split())


def test_everything_is_typed_and_documented():
    for name in polyfuse.__all__:
        found = getattr(polyfuse, name)
        if inspect.isfunction(found):
            assert inspect.getdoc(found), name
            signature = inspect.signature(found)
            annotations = [p.annotation for p in signature.parameters.values()]
            assert inspect.Parameter.empty not in (*annotations, signature.return_annotation), name


def test_what_is_compiled_is_counted_and_forgotten():
    polyfuse.reset()
    run = polyfuse.compile(lambda x: torch.softmax(x * 3, -1), options={"strict": True}, dynamic=False)
    x = torch.randn(5, 30)
    torch.testing.assert_close(run(x), torch.softmax(x * 3, -1))
    found = polyfuse.metrics()
    assert (found.graphs, found.kernels, found.library_calls) == (1, 1, 0)
    assert found.operators >= 2 and 0 < found.bytes_after < found.bytes_before and not found.fallbacks
    assert found.cache_hits + found.cache_misses + sum(found.cache_bypasses.values()) <= 1
    polyfuse.reset()
    assert polyfuse.metrics() == polyfuse.metrics() and polyfuse.metrics().graphs == 0
    run(x)
    assert polyfuse.metrics().graphs == 1


def test_why_a_graph_is_in_eager_mode_is_counted():
    polyfuse.reset()
    x = torch.randn(4, 4)
    polyfuse.compile(torch.sin, options={"force_fallback": ["aten.sin"]})(x)
    (reason,) = polyfuse.metrics().fallbacks
    assert "force_fallback" in reason and polyfuse.metrics().library_calls == 1
    polyfuse.reset()


def test_a_module_stays_a_module():
    net = torch.nn.Linear(3, 2)
    compiled = polyfuse.compile(net)
    assert isinstance(compiled, torch.nn.Module)
    torch.testing.assert_close(compiled(torch.ones(2, 3)), net(torch.ones(2, 3)))
