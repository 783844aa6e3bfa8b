"""What a package with the option `freezing` has instead of parameters: what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polyfuse.runtime.frozen import FrozenValues, PackedInputs, laid_out


@dataclass(frozen=True)
class Folded:
    """How the inputs of a program are made that its graph did not have.

    Attributes:
        values: what follows from tensors of the model; the program takes them behind these.
        packed: what is laid out for kernels of the program, which takes it last, and which of the
            inputs before it does not take.
    """

    values: FrozenValues
    packed: PackedInputs

    def tensors(self, given: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """What the program takes behind the tensors and arguments of its graph.

        Args:
            given: the tensors of the model, where the graph takes them; None for each argument.
        """
        made: list[Any] = [*given, *self.values([given[position] for position in self.values.sources])]
        first = len(given)
        with torch.inference_mode(False), torch.no_grad():
            made += [
                laid_out(step.run(made), *layout)
                for step, layout in zip(self.packed.steps, self.packed.layouts, strict=True)
                if layout is not None
            ]
        return [made[i] for i in range(first, len(made)) if i not in self.packed.unread]
