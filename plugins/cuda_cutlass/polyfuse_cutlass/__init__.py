"""Matrix multiplications on NVIDIA GPUs from generated CUDA C++, as a Polyfuse backend."""
