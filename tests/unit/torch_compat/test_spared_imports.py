"""`networkx` is not imported with AOTAutograd, and is there for who asks for it."""

from __future__ import annotations

import preforked

FORGOTTEN = """
import sys
folder = "torch._functorch._activation_checkpointing."
name, other = folder + "graph_info_provider", folder + "knapsack_evaluator"
for module in [name, other, *(m for m in sys.modules if m.partition(".")[0] == "networkx")]:
    sys.modules.pop(module, None)
"""

SPARED = """
import polyfuse.backend
user, evaluator = sys.modules[name], __import__(other, fromlist=["nx"])
assert "networkx" not in sys.modules
costs = {"all_node_runtimes": {"a": 1.0}, "all_node_memories": {"a": 1.0}}
graph = user.GraphInfoProvider(["a", "b"], [("a", "b")], ["a"], **costs).full_joint_nx_graph
import networkx
assert type(graph) is networkx.DiGraph is user.nx.DiGraph is evaluator.nx.DiGraph
assert list(graph.edges) == [("a", "b")]
print("ok")
"""

IMPORTED_MEANWHILE = """
from polyfuse.torch_compat.captures import spared_imports
late = sys.modules["networkx"] = spared_imports._Late("networkx")
import networkx
assert networkx is late
graph = networkx.DiGraph
import networkx
assert networkx is not late and networkx.DiGraph is graph is late.DiGraph
spared_imports.spare_networkx()
assert sys.modules["networkx"] is networkx and name not in sys.modules
print("ok")
"""


def test_the_backend_does_not_import_it() -> None:
    _run(SPARED)


def test_who_imports_it_meanwhile_has_the_real_one() -> None:
    _run(IMPORTED_MEANWHILE)


def _run(script: str) -> None:
    process = preforked.start(FORGOTTEN + script, bare=True)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err[-2000:]
    assert out.strip() == "ok"
