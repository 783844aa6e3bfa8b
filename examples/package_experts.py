"""Compile a mixture of experts ahead of time, with experts that `torch.export` accepts.

Each token chooses its experts, so that data decide how many tokens an expert gets: `torch.export` refuses
the loop over experts that `transformers` runs by default. With `batched_mm`, each token's weights are
gathered and multiplied in one batched matmul, whose sizes depend on no data.

python examples/package_experts.py model.pf
"""

from __future__ import annotations

import sys

import torch
import transformers

from polyfuse import aot


class Logits(torch.nn.Module):
    """A model whose result is one tensor, and whose cache is off."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits


def main(path: str) -> None:
    """Write a package, load it, and compare it with eager mode."""
    config = transformers.MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    model = transformers.MixtralForCausalLM(config).eval()
    model.set_experts_implementation("batched_mm")
    network = Logits(model)
    with torch.no_grad():
        aot.package(network, (torch.randint(0, 64, (2, 9)),), path=path)
        run = aot.load(path)
        for _ in range(3):  # other tokens, which choose other experts
            tokens = torch.randint(0, 64, (2, 9))
            torch.testing.assert_close(run(tokens), network(tokens), rtol=1e-4, atol=1e-4)
    print(f"{path} agrees with eager mode")


if __name__ == "__main__":
    main(sys.argv[1])
