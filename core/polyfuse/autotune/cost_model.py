"""A learned cost model: by how much a configuration takes longer or shorter than its backend estimates,
fitted to the trials of other kernels. It says which configurations of a new kernel may be the fastest.

A small ridge regression on the logarithm of time over estimate, within each kernel. It knows a configuration
by its values, and by their magnitudes, alone and together with the sizes of the kernel. It is believed as far
as it would have been right: each kernel is left out once and predicted from the others. How far the fastest
was then behind what was predicted to be the fastest is the margin within which configurations are worth
building.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy
from numpy.typing import NDArray

from polyfuse.cache.samples import KernelSamples
from polyfuse.cache.timings import FAILED

# Of fewer samples or kernels no model is fitted, nor of kernels of which fewer were timed.
_SAMPLES: Final = 40
_KERNELS: Final = 8
_COMPARED: Final = 4
# As fast as the fastest.
_ALIKE: Final = 1.01
# What takes more than so many times as long as the fastest, or fails, is slow: how slow, is of no interest.
_SLOW: Final = 2.0
# The margin is such that for this part of the kernels the fastest was within it; and what is so little beyond
# it, as a logarithm, is within it too: times are not exact.
_COVERED: Final = 0.95
_SLACK: Final = 0.01
# A model that has more than this part of the configurations built is of no use.
_WORTH: Final = 0.75
# Of the pull towards the estimate, the one that predicts best is taken.
_PULLS: Final = (1.0, 3.0, 10.0, 30.0, 100.0)

_Array: TypeAlias = NDArray[numpy.float64]
_Values = Sequence[tuple[str, int]]
_Feature = tuple[str, int | None, int | None]
"""A value by its name; its number, or None for its magnitude; the position of a size that goes with it."""


@dataclass(frozen=True)
class CostModel:
    """The model of a kind of kernel.

    Attributes:
        features: what is known of a configuration.
        weights: how much longer each makes it, as a logarithm.
        margin: how far behind the best score one may be that is worth building.
        samples, kernels: how many it was fitted to.
        rank, plain_rank: of the fastest, on average, by the score and without it.
        built: part of the configurations that are within the margin, on average.
        estimated: whether it corrects estimates; else it knows times alone.
        least, most: of each size, among these kernels.
    """

    features: tuple[_Feature, ...]
    weights: tuple[float, ...]
    margin: float
    samples: int
    kernels: int
    rank: float
    plain_rank: float
    built: float
    estimated: bool
    least: tuple[int, ...]
    most: tuple[int, ...]

    def knows(self, sizes: Sequence[int]) -> bool:
        """Whether a kernel lies among those that it was fitted to: beyond them, nothing is known."""
        return all(a <= size <= b for a, size, b in zip(self.least, sizes, self.most, strict=True))

    def scores(
        self, sizes: Sequence[int], configs: Sequence[_Values], estimates: Sequence[float] | None
    ) -> list[float]:
        """Logarithms of how long configurations of one kernel take, up to one summand.

        Args:
            estimates: the backend's, for each; None where it has none.
        """
        if not configs:
            return []
        found = _table(self.features, sizes, configs) @ numpy.array(self.weights)
        base = _saturated(estimates or [1.0] * len(configs))
        # rounded, so that the order of what is as good as equal is the same on every CPU
        return [round(float(score), 6) for score in found + base]

    def within_margin(self, scores: Sequence[float]) -> list[int]:
        """Which are within the margin, the best first."""
        limit = min(scores, default=0.0) + self.margin
        return sorted((i for i, s in enumerate(scores) if s <= limit), key=lambda i: (scores[i], i))

    @property
    def about(self) -> str:
        """How good it is, for people."""
        return (
            f"{self.samples} samples of {self.kernels} kernels; the fastest ranks {self.rank:.1f} by the "
            f"model, {self.plain_rank:.1f} without; {self.built:.0%} of the configurations are built"
        )


def fit_model(kernels: Sequence[KernelSamples]) -> CostModel | None:
    """The model of kernels of one kind; None where they are too few, or it is no better than estimates."""
    fit = [one for one in kernels if sum(s.milliseconds != FAILED for s in one.samples) >= _COMPARED]
    samples = sum(len(one.samples) for one in fit)
    if len(fit) < _KERNELS or samples < _SAMPLES or len({len(one.sizes) for one in fit}) > 1:
        return None
    features = _features(fit)
    if not features:
        return None
    tables = [_table(features, one.sizes, [s.config for s in one.samples]) for one in fit]
    estimated = all(s.estimate is not None for one in fit for s in one.samples)
    bases = [_base(one, estimated) for one in fit]
    aims = [_saturated([s.milliseconds for s in one.samples]) for one in fit]
    wanted = [_centred(aim - base) for aim, base in zip(aims, bases, strict=True)]
    _, pull = min((_error(_left_out(tables, wanted, pull), wanted), pull) for pull in _PULLS)
    predicted = _left_out(tables, wanted, pull)
    scored = [base + found for base, found in zip(bases, predicted, strict=True)]
    gaps = sorted(_behind(one, scores) for one, scores in zip(fit, scored, strict=True))
    margin = gaps[math.ceil(_COVERED * len(gaps)) - 1] + _SLACK
    built = _mean([float(numpy.mean(scores <= scores.min() + margin)) for scores in scored])
    rank = _mean([_rank(one, scores) for one, scores in zip(fit, scored, strict=True)])
    plain = _mean([_rank(one, _plain(one, base, estimated)) for one, base in zip(fit, bases, strict=True)])
    if rank >= plain or built > _WORTH:
        return None
    solved = _solved(numpy.concatenate(tables), numpy.concatenate(wanted), pull)
    weights = tuple(map(float, solved))
    sizes = [*zip(*(one.sizes for one in fit), strict=True)]
    least, most = tuple(map(min, sizes)), tuple(map(max, sizes))
    return CostModel(features, weights, margin, samples, len(fit), rank, plain, built, estimated, least, most)


# What is known of a configuration.


def _features(kernels: Sequence[KernelSamples]) -> tuple[_Feature, ...]:
    """Of values that vary within some kernel."""
    varied: set[tuple[str, int]] = set()
    for one in kernels:
        first = set(one.samples[0].config)
        varied = varied.union(*(first ^ set(s.config) for s in one.samples))
    found: list[_Feature] = [(name, number, None) for name, number in sorted(varied)]
    for position in (None, *range(len(kernels[0].sizes))):
        found += [(name, None, position) for name in sorted({name for name, _ in varied})]
    return tuple(found)


def _table(features: Sequence[_Feature], sizes: Sequence[int], configs: Sequence[_Values]) -> _Array:
    """A row for each configuration, centred: only what differs within a kernel counts."""
    scales = {None: 1.0} | {i: (math.log2(max(1, size)) - 8) / 4 for i, size in enumerate(sizes)}
    rows = [
        [_number(values.get(name), number) * scales.get(position, 0.0) for name, number, position in features]
        for values in map(dict, configs)
    ]
    return _centred(numpy.array(rows, dtype=numpy.float64).reshape(len(configs), len(features)))


def _number(value: int | None, number: int | None) -> float:
    if value is None:
        return 0.0
    return math.log2(1 + abs(value)) / 4 if number is None else float(value == number)


# What is known of a kernel.


def _saturated(times: Sequence[float]) -> _Array:
    """Logarithms of times, as far as they matter."""
    return numpy.log(numpy.minimum(numpy.array(times, dtype=numpy.float64), _SLOW * min(times)))


def _base(one: KernelSamples, estimated: bool) -> _Array:
    """The backend's estimate of each configuration; nothing, where it does not estimate all."""
    guessed = [s.estimate if estimated and s.estimate is not None else 1.0 for s in one.samples]
    return _saturated(guessed)


def _plain(one: KernelSamples, base: _Array, estimated: bool) -> _Array:
    """The scores without a model: the estimates, or the order in which configurations are offered."""
    return base if estimated else numpy.arange(len(one.samples), dtype=numpy.float64)


def _fastest(one: KernelSamples) -> list[int]:
    least = min(s.milliseconds for s in one.samples)
    return [i for i, s in enumerate(one.samples) if s.milliseconds <= _ALIKE * least]


def _behind(one: KernelSamples, scores: _Array) -> float:
    """How far the fastest is behind the one with the best score."""
    return float(min(scores[i] for i in _fastest(one)) - scores.min())


def _rank(one: KernelSamples, scores: _Array) -> float:
    """The rank of the fastest by the scores, from 1 on."""
    return 1.0 + float(numpy.sum(scores < min(scores[i] for i in _fastest(one))))


# Regression.


def _solved(rows: _Array, wanted: _Array, pull: float) -> _Array:
    normal = rows.T @ rows + pull * numpy.eye(rows.shape[1])
    return numpy.asarray(numpy.linalg.solve(normal, rows.T @ wanted))


def _left_out(tables: Sequence[_Array], wanted: Sequence[_Array], pull: float) -> list[_Array]:
    """What all kernels but one predict of that one, for each: from one solution for all, by the identity of
    Sherman, Morrison and Woodbury.
    """
    rows = numpy.concatenate(tables)
    inverse = numpy.linalg.inv(rows.T @ rows + pull * numpy.eye(rows.shape[1]))
    weights = inverse @ (rows.T @ numpy.concatenate(wanted))
    found: list[_Array] = []
    for table, aim in zip(tables, wanted, strict=True):
        share = numpy.eye(len(table)) - table @ inverse @ table.T
        found.append(aim - numpy.linalg.solve(share, aim - table @ weights))
    return found


def _error(predicted: Sequence[_Array], wanted: Sequence[_Array]) -> float:
    return float(sum(numpy.sum((p - w) ** 2) for p, w in zip(predicted, wanted, strict=True)))


def _centred(values: _Array) -> _Array:
    return numpy.asarray(values - values.mean(axis=0))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
