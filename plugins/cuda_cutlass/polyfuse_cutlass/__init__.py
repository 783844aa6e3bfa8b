"""Matrix products on NVIDIA GPUs from generated CUDA C++, as a Polyfuse backend."""
