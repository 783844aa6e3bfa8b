"""What the Triton backend guesses of tilings: sane orders, not seconds."""

from __future__ import annotations

import pytest
import torch

from requirements import TRITON

pytest.importorskip("triton", reason=TRITON)

from gemm_kernels import kernels_of
from polyfuse.plugin import Config
from polyfuse_triton.codegen import configs
from polyfuse_triton.target import known_target
from polyfuse_triton.tiling.estimates import estimate
from triton_gemms import Case, kernel_of

H100 = known_target("sm_90")


def guess(kernel, config: Config) -> float:
    found = estimate(kernel, config, H100)
    assert found is not None and found > 0
    return found


def test_larger_matmuls_take_longer_and_wasted_tiles_too():
    kernel = kernel_of(Case(512, 512, 512))
    first = configs(kernel, H100)[0]
    for sizes in ((4096, 4096, 512), (512, 512, 4096)):
        assert guess(kernel_of(Case(*sizes)), first) > guess(kernel, first)
    few = kernel_of(Case(16, 4096, 4096))
    tile = {"n": 64, "k": 64, "group": 8, "warps": 4, "stages": 4}
    assert guess(few, Config.of(m=128, **tile)) >= guess(few, Config.of(m=16, **tile))


def test_all_tilings_that_are_offered_have_a_guess_and_the_first_is_among_the_best():
    kernel = kernel_of(Case(512, 512, 512))
    guesses = [guess(kernel, config) for config in configs(kernel, H100)]
    assert guesses[0] <= 1.1 * min(guesses)


def test_loops():
    (kernel,) = kernels_of(lambda x: x.sin() + 1, torch.randn(1024, 1024))
    found = configs(kernel, H100)
    guesses = {config: guess(kernel, config) for config in found}
    assert guesses[found[0]] < 2 * min(guesses.values())
    (larger,) = kernels_of(lambda x: x.sin() + 1, torch.randn(4096, 1024))
    assert guess(larger, found[0]) > guesses[found[0]]
    tiny, huge = (Config.of(x=block, warps=1) for block in (32, 1 << 16))
    assert guess(kernel, tiny) > guesses[found[0]] and guess(kernel, huge) > guesses[found[0]]


def test_sums_and_tiles_of_one_matmul_are_not_compared():
    kernel = kernel_of(Case(1, 512, 512))
    assert {estimate(kernel, config, H100) for config in configs(kernel, H100)} == {None}
