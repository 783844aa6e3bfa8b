"""A kernel as C++ loops: stages, the loop nest, statements, reductions and scans."""
