"""Device functions that generated kernels call, and what Triton's interpreter needs beside them."""
