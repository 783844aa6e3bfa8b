"""What plugins for NVIDIA GPUs share: the CUDA driver, facts about GPUs, and compilers of CUDA C++.

| module | holds |
|---|---|
| `driver` | the driver's functions through ctypes: contexts, modules, functions, words for errors |
| `launch` | the driver's structures for launches, and a launch with packed parameters |
| `gpu` | what a GPU is: compute capability, multiprocessors, sizes of memories; known and present ones |
| `toolchain` | where nvcc, ptxas and NVRTC are, and running nvcc |
| `nvrtc` | CUDA's compiler as a library |
| `template` | calls of kernels whose frame is written by hand |

It is no plugin: it has no manifest, knows no backend, and imports nothing of them.
"""
