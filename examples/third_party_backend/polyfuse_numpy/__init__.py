"""An example of a Polyfuse backend: kernels as NumPy programs."""
