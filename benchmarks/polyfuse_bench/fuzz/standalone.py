"""A failure as a file that runs by itself: the program, its inputs and options, and the difference."""

from __future__ import annotations

from pathlib import Path
from pprint import pformat

from polyfuse_bench.fuzz.trial import GRADIENTS, Trial
from polyfuse_bench.fuzz.worker import INTERPRETED

__all__ = ["standalone"]

_HEAD = '''\
"""{title}

Found by random programs. Run it: it prints how far the compiled program is from float64, and eager mode.
"""

import zlib

import torch
from torch.nn import functional as F

from polyfuse.base.settings import Settings
from polyfuse.cache import KernelStore
from polyfuse.compiler.compile import compile_in_session
from polyfuse.compiler.session import CompileSession
from polyfuse.plugin import Config, PluginManager
from polyfuse.workers import BuildPool

OPTIONS = {options}
CONFIGS = {configs}  # of the kernels, in turn; None: the backend's first
DEVICE = {device!r}
SEED = {seed}
TYPES = {{"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64,
         "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "b8": torch.bool}}


{body}

def inputs(wide):
    def makers(name):
        g = torch.Generator().manual_seed(SEED * 10007 + zlib.crc32(name.encode()))

        def normal(dtype, *sizes):
            value = torch.randn(sizes, generator=g).to(TYPES[dtype])
            return (value.double() if wide else value).to(DEVICE)

        def below(limit, *sizes, dtype="i64"):
            return torch.randint(0, limit, sizes, generator=g).to(TYPES[dtype]).to(DEVICE)

        def order(length):
            return torch.randperm(length, generator=g).to(DEVICE)

        def flags(*sizes):
            return (torch.randn(sizes, generator=g) > -0.5).to(DEVICE)

        return {{"normal": normal, "below": below, "order": order, "flags": flags}}

    texts = {inputs}
    found = [eval(text, makers(name)) for name, text in texts.items()]
    return [a.requires_grad_() if {gradients} and a.is_floating_point() else a for a in found]


def types(wide):
    floats = ("f32", "bf16", "f16", "f64")
    globals().update({{n: torch.float64 if wide and n in floats else t for n, t in TYPES.items()}})


def choose():
    given = iter(CONFIGS)

    def config(backend, kernel):
        found = next(given, None)
        return None if found is None else Config(tuple(found.items()))

    return config


def compiled(arguments):
    settings = Settings.resolve(None, {{"cache": False, "graph_cache": False, **OPTIONS}})
    store, pool = KernelStore.temporary(), BuildPool(settings)
    session = CompileSession(settings, PluginManager(settings), pool, store, (), choose())
    if {traced}:
        return compile_in_session(torch.fx.symbolic_trace(program), arguments, session)
    return torch.compile(program, backend=lambda gm, given: compile_in_session(gm, given, session),
                         dynamic={dynamic})


def answer(run, arguments):
{answer}

def main():
    torch.set_num_threads({threads})
    answers = []
    for wide in (True, False):
        types(wide)
        answers.append(answer(program, inputs(wide)))
    arguments = inputs(False)
    answers.append(answer(compiled(arguments), arguments))
    for i, (exact, eager, found) in enumerate(zip(*answers)):
        size = float(exact.double().norm()) or 1.0
        far, usual = (float((t.double() - exact).norm()) / size for t in (found, eager))
        what = f"result {{i}}" if i < {results} else f"input {{i - {results}}} {inputs_are}"
        print(f"{{what}}: error of the norm {{far:.3g}}, of eager mode {{usual:.3g}}")
        if far > 10 * usual + 1e-5:
            print("found", found, "float64", exact, sep="\\n")


if __name__ == "__main__":
    main()
'''

_FORWARD = """\
    with torch.no_grad():
        return [*run(*arguments), *arguments]
"""

_GRADIENTS = """\
    results, g, wanted = list(run(*arguments)), torch.Generator().manual_seed(SEED), []
    given = []
    for result in results:
        drawn = torch.randint(-8, 9, result.shape, generator=g) / 8
        if result.requires_grad:
            wanted.append(result)
            given.append(drawn.to(result.device, result.dtype))
    floats = [a for a in arguments if a.requires_grad]
    found = torch.autograd.grad(wanted, floats, given, allow_unused=True, materialize_grads=True)
    return [*(r.detach() for r in results), *found]
"""

_INTERPRETED = """\
import os
import sys

os.environ["TRITON_INTERPRET"] = "1"
sys.path.append({tests!r})
import triton_interpreted

triton_interpreted.offer()

"""


def standalone(trial: Trial, backend: str, title: str) -> str:
    """The text of the file."""
    differentiated = trial.route == GRADIENTS
    options = {**trial.options, "backends": (backend, "interpreter"), "strict": True}
    text = _HEAD.format(
        title=(title.splitlines() or ["It fails no more."])[0].replace("\\", "/"),
        options=pformat(options, width=100),
        configs=list(trial.configs),
        device=trial.device,
        seed=trial.program.seed,
        body=trial.program.body,
        inputs=pformat({i.name: i.text for i in trial.program.inputs}, indent=4, width=100, sort_dicts=False),
        traced=trial.route in ("traced", GRADIENTS),
        gradients=differentiated,
        answer=_GRADIENTS if differentiated else _FORWARD,
        inputs_are="gradient" if differentiated else "afterwards",
        dynamic=trial.route == "dynamic",
        threads=trial.threads,
        results=len(trial.program.results),
    )
    if backend == INTERPRETED:
        tests = str(Path(__file__).resolve().parents[3] / "tests")
        text = text.replace("import zlib\n", _INTERPRETED.format(tests=tests) + "import zlib\n", 1)
    return text
