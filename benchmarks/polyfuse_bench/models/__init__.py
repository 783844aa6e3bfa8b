"""Model families from `transformers` with random weights: nothing is downloaded."""

from polyfuse_bench.models.family import Family, Prepared, Size, flatten_outputs, prepare
from polyfuse_bench.models.registry import FAMILIES, MAIN_FAMILIES, family, family_names

__all__ = [
    "FAMILIES",
    "MAIN_FAMILIES",
    "Family",
    "Prepared",
    "Size",
    "family",
    "family_names",
    "flatten_outputs",
    "prepare",
]
