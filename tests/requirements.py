"""What some tests need and a machine may lack: marks that skip them, and the reasons in the same words."""

from __future__ import annotations

import shutil

import pytest
import torch
from packaging.version import Version

from polyfuse_cpp.isa import detect_isa, detect_isa_name, dot_instructions

GPU = "no GPU that torch can use is in this machine, and the test runs kernels on one"
TWO_GPUS = "this machine has fewer than two GPUs, and the test computes on two of them"
HOPPER = "this machine has no Hopper GPU (compute capability 9.0), for which the test's kernels are compiled"
CLUSTERS = "this machine's GPU is older than Hopper (compute capability 9.0), and has no clusters of programs"
HAS_GPU = "this machine has a GPU that torch can use, and the test is about machines without one"
TRITON = "Triton is not installed, and the test compiles or interprets kernels with it"
HALIDE = "Halide is not installed, and the test makes kernels with it"
NVRTC = "the library NVRTC is not installed, and the test compiles kernels with it"
GCC = "the C compiler gcc is not installed, and the test compiles with it"
GXX = "the C++ compiler g++ is not installed, and the test compiles with it"
NVCC = "the CUDA compiler nvcc is not installed, and the test compiles kernels with it"
REDIS = "the program redis-server is not installed, and the test starts one"
DISTRIBUTED = "this torch is built without torch.distributed, and the test talks to other processes with it"
AMX = "this CPU has no matrix registers (AMX), and the test runs kernels that multiply in them"
PAIRS = "this CPU has no instruction that multiplies pairs of bf16, and the test runs kernels with it"
VECTORS = "this CPU has none of the vector instructions that the test's convolutions are written for"
AVX512 = "this CPU has no AVX-512, and the test looks at weights that are packed for it"
GLOO = "this torch is built without Gloo, and the test starts processes that talk over it"

HAS_AMX = "PF_AMX" in dot_instructions()

needs_amx = pytest.mark.skipif(not HAS_AMX, reason=AMX)
needs_pairs = pytest.mark.skipif("PF_DOT_BF16" not in dot_instructions(), reason=PAIRS)
needs_vectors = pytest.mark.skipif(detect_isa().lanes == 1, reason=VECTORS)
needs_avx512 = pytest.mark.skipif(detect_isa_name() != "avx512", reason=AVX512)
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason=GCC)
needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason=GXX)
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason=NVCC)


def has_distributed() -> bool:
    """Whether torch can talk to other processes."""
    import torch.distributed

    return torch.distributed.is_available()


def has_gloo() -> bool:
    """Whether processes of this machine can talk to each other."""
    import torch.distributed

    return has_distributed() and torch.distributed.is_gloo_available()


def torch_version() -> tuple[int, int]:
    """Major and minor version of the installed torch."""
    installed = Version(torch.__version__)
    return installed.major, installed.minor
