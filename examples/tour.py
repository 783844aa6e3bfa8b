"""The function that docs/tour.md follows through the compiler."""

import torch


def scores(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x @ w + b, dim=-1)


INPUTS = (torch.randn(64, 32), torch.randn(32, 128), torch.randn(128))

if __name__ == "__main__":
    compiled = torch.compile(scores, backend="polyfuse")
    torch.testing.assert_close(compiled(*INPUTS), scores(*INPUTS))
    print("the compiled function gives what eager mode gives")
