"""No honest kernel is reported: operators of torch's database and an optimizer, with every kernel checked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from polyfuse.checking import tally


@pytest.fixture(autouse=True)
def counted():
    tally.begin(forget=True)
    yield
    tally.begin(forget=False)


def compiled(function: Callable[..., Any], **options: object) -> Callable[..., Any]:
    torch._dynamo.reset()
    options = {"check": "first", "graph_cache": False, **options}
    return torch.compile(function, backend="polyfuse", dynamic=False, options=options)


def agreed() -> None:
    found = tally.result()
    assert not found.findings, "\n".join(map(str, found.findings))
    assert found.kernels and not found.skipped


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["fast", "eager"])
def test_an_optimizer(numerics):
    torch.manual_seed(0)
    network = nn.Linear(33, 7)
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.1, foreach=True)
    network(torch.randn(5, 33)).square().mean().backward()
    compiled(optimizer.step, numerics=numerics)()
    agreed()


def test_a_store_to_a_single_number():
    """A kernel without axes, of which the store does not happen."""
    x, rows = torch.tensor(1.0), torch.tensor([[0.0], [2.0]])
    one, flags = torch.tensor([0]), torch.tensor([False, True])
    run = compiled(lambda x, v: (x.index_copy(0, one, v[1]), x.masked_fill(flags[0], 3.0)))
    found = run(x, rows)
    assert [f.item() for f in found] == [2.0, 1.0]
    agreed()


FEW = (
    *("sort", "cumsum", "scatter_add", "index_put", "var_mean", "logsumexp", "softmax", "argmax"),
    *(
        "nn.functional.grid_sample",
        "nn.functional.max_pool2d",
        "floor_divide",
        "special.erfcx",
        "nn.functional.huber_loss",
    ),
)


def entries(names: tuple[str, ...] | None) -> list[Any]:
    from polyfuse_bench.opdb.check import op_db

    return [op for op in op_db if names is None or op.name in names]


def run_database(names: tuple[str, ...] | None, dtype: torch.dtype, samples: int, **options: object) -> None:
    torch.manual_seed(0)
    for op in entries(names):
        if dtype not in op.dtypes:
            continue
        run = compiled(lambda *a, op=op, **k: op.op(*a, **k), **options)
        for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
            if number == samples:
                break
            with contextlib.suppress(Exception):  # whether it runs is another test's affair
                run(sample.input, *sample.args, **sample.kwargs)


@pytest.mark.parametrize(
    "names", [FEW[::4], *(pytest.param(FEW[n::4], marks=pytest.mark.slow) for n in (1, 2, 3))]
)
def test_some_operators(names):
    run_database(names, torch.float32, 1)
    agreed()


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["fast", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_all_operators(dtype, numerics):
    run_database(None, dtype, 3, numerics=numerics)
    agreed()


class Residual(nn.Module):
    """Convolutions with batch normalisation and a residual, attention over their pixels, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.inner = nn.Conv2d(16, 16, 3, padding=1, groups=4)
        self.attention = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = nn.functional.max_pool2d(x + self.inner(x), 2)
        found = self.head(self.attention(x.flatten(2).mT).mean(1))
        return nn.functional.cross_entropy(found.float(), labels)


def check_training(model: nn.Module, *given: Any, **named: Any) -> None:
    """Two steps of a model, forward and backward."""
    run = compiled(model.train())
    for _ in range(2):
        model.zero_grad()
        found = run(*given, **named)
        (found if isinstance(found, torch.Tensor) else found.loss).backward()
    agreed()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_training(dtype):
    torch.manual_seed(0)
    check_training(Residual().to(dtype), torch.randn(2, 3, 8, 8).to(dtype), torch.tensor([1, 4]))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["Bert", "Llama", "GPT2"])
def test_training_of_language_models(name, dtype):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = {
        "Bert": lambda: transformers.BertConfig(vocab_size=99, is_decoder=True, **sizes),
        "Llama": lambda: transformers.LlamaConfig(vocab_size=99, num_key_value_heads=2, **sizes),
        "GPT2": lambda: transformers.GPT2Config(vocab_size=99, n_embd=64, n_layer=2, n_head=4),
    }[name]()
    for part in (
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "resid_pdrop",
        "embd_pdrop",
        "attn_pdrop",
    ):
        setattr(config, part, 0.0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(dtype)
    words = torch.randint(0, 99, (2, 24))
    check_training(model, input_ids=words, labels=words)
