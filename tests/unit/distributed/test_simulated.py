"""A process that plays one rank of a larger world."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import preforked
from polyfuse.base.settings import environment
from polyfuse.cli import main
from polyfuse.cli.ranks.worlds import world_sizes, worlds_text
from polyfuse.distributed.simulated import World, simulated_rank
from polyfuse.runtime.devices.registry import device_of
from polyfuse.runtime.ranks.costs import CollectiveCosts, known_costs
from polyfuse.torch_compat.simulated_group import SIMULATED
from requirements import DISTRIBUTED, has_distributed

if not has_distributed():
    pytest.skip(DISTRIBUTED, allow_module_level=True)

RANKS = 4
# torch 2.13 calls them otherwise
GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def world(ranks: int = RANKS, per_host: int = 2) -> World:
    """Where collectives take minutes, none of which passes here: no busy machine hides one behind what it
    computes."""
    return World(ranks, per_host, (CollectiveCosts.given(1e9, 1000.0),))


def test_every_collective_of_torch() -> None:
    own = torch.arange(8.0)
    with simulated_rank(world()) as rank:
        dist.init_process_group("nccl")  # the program's own word is not heeded
        assert (dist.get_rank(), dist.get_world_size(), environment("WORLD_SIZE")) == (0, RANKS, "4")
        dist.all_reduce(own.clone())
        dist.broadcast(own.clone(), 0)
        gathered = torch.empty(RANKS * 8)
        GATHER(gathered, own)
        assert torch.equal(gathered, own.repeat(RANKS))
        parts = [torch.empty(8) for _ in range(RANKS)]
        dist.all_gather(parts, own)
        assert all(torch.equal(part, own) for part in parts)
        share = torch.empty(2)
        SCATTER(share, own)
        assert torch.equal(share, own[:2])
        sent = torch.empty(8)
        dist.all_to_all_single(sent, own)
        work = dist.all_reduce(own.clone(), async_op=True)
        work.wait()
        dist.send(own, 1)
        dist.recv(own.clone(), 1)
        dist.barrier()
        objects = [None] * RANKS
        dist.all_gather_object(objects, {"a": 1})
        assert objects == [{"a": 1}] * RANKS
        pair = dist.new_group([0, 1], backend="gloo")
        dist.all_reduce(own.clone(), group=pair)
        dist.destroy_process_group()
        assert dist.is_initialized()
    kinds = [(f.kind, f.nbytes, f.ranks) for f in rank.timeline.flights]
    assert kinds[:6] == [
        ("all_reduce", 32, 4),
        ("broadcast", 32, 4),
        ("all_gather", 128, 4),
        ("all_gather", 128, 4),
        ("reduce_scatter", 32, 4),
        ("all_to_all", 32, 4),
    ]
    assert kinds[-1] == ("all_reduce", 32, 2) and ("send", 32, 4) in kinds
    assert not dist.is_initialized() and environment("WORLD_SIZE") == ""
    assert not known_costs(SIMULATED, device_of("cpu").facts()), "what is played decides nothing later"
    result = rank.result()
    assert result["ranks"] == RANKS and float(str(result["exposed"])) > 0.01


def test_gradients_of_a_wrapped_model_are_waited_for_at_the_end() -> None:
    with simulated_rank(world()) as rank:
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            model(torch.randn(4, 3)).sum().backward()
            optimizer.step()
        step = rank.timeline.step()
    assert step.steps == 2 and step.collectives == {"all_reduce": (1, 32)}
    assert 0 < step.exposed <= step.communication


def test_compiled_collectives_of_a_program() -> None:
    import torch.distributed._functional_collectives as functional

    def f(x: torch.Tensor) -> torch.Tensor:
        return functional.all_gather_tensor(x.sin(), 0, dist.group.WORLD).sum(0) + x.cos().sum(0)

    try:
        with simulated_rank(world()) as rank:
            compiled = torch.compile(f, backend="polyfuse", options={"backends": ["interpreter"]})
            x = torch.randn(3, 2)
            torch.testing.assert_close(compiled(x), RANKS * x.sin().sum(0) + x.cos().sum(0))
            assert [f.kind for f in rank.timeline.flights] == ["all_gather"]
    finally:
        torch._dynamo.reset()


PROGRAM = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(1000))
    dist.all_gather_object([None] * dist.get_world_size(), "x")
dist.destroy_process_group()
print("done")
"""


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = ["explain", "--network", "100", "--latency", "60e6", "--world", "8", str(program)]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "done" in out and "all_reduce" in out and "costs of collectives: given" in out
    page = tmp_path / "page.html"
    assert main([words[0], "--json", "--html", str(page), *words[1:]]) == 0
    (found,) = json.loads(capsys.readouterr().out)["worlds"]
    assert [flight["kind"] for flight in found["flights"]].count("all_reduce") == 1
    assert "<h2>8 ranks</h2>" in page.read_text() and "all_reduce of" in page.read_text()
    assert main(["explain", "--html", str(page), str(program)]) == 1
    assert found["ranks"] == 8 and found["exposed"] > 60 and found["collectives"]["all_reduce"][0] == 1


def test_nothing_known_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POLYFUSE_CACHE_DIR", str(tmp_path))
    program = tmp_path / "program.py"
    program.write_text("")
    assert main(["explain", "--world", "8,64", str(program)]) == 1
    printed = capsys.readouterr()
    assert not printed.out and printed.err.count("nothing is known of what collectives cost here") == 1


def test_sizes_and_text() -> None:
    assert world_sizes("8,64, 512") == (8, 64, 512)
    with pytest.raises(Exception, match="from 2 on"):
        world_sizes("1")
    with simulated_rank(world(2)) as rank:
        pass
    text = worlds_text([rank.result()])
    assert "none" in text and "no step repeats" in text


@pytest.mark.slow
def test_several_worlds_run_apart(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    words = ["explain", "--network", "100", "--world", "2,64", str(program)]
    code = f"from polyfuse.cli import main; main({words!r})"
    child = preforked.start(code, environment={})
    out, _ = child.communicate(120)
    assert [line.split()[0] for line in out.splitlines()[1:3]] == ["2", "64"]
