"""The Triton backend of Polyfuse: kernels for NVIDIA GPUs."""
