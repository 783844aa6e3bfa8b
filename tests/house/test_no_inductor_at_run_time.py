"""After a compile, none of the parts of Inductor that compile is loaded.

Dynamo and AOTAutograd load small parts of it on their own, one module of `fx_passes` among them; those are
not listed.
"""

from __future__ import annotations

import json

import preforked

PARTS = (
    *("ir", "graph", "lowering", "scheduler", "compile_fx", "select_algorithm"),
    *("codegen.cpp", "codegen.triton", "fx_passes.post_grad", "fx_passes.joint_graph", "fx_passes.pre_grad"),
)

SCRIPT = """
import json, sys, torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
compiled = torch.compile(model, backend="polyfuse")
x = torch.randn(2, 4)
torch.testing.assert_close(compiled(x), model(x))
compiled(x).sum().backward()
print(json.dumps([name for name in sys.modules if name.startswith("torch._inductor.")]))
"""


def test_inductor_is_not_loaded():
    done = preforked.run(SCRIPT)
    assert done.returncode == 0, done.stderr[-2000:]
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert not {f"torch._inductor.{part}" for part in PARTS} & set(loaded)
