"""A kernel as C++ loops: stages, the loop nest, statements, reductions and scans.

`kernel` begins at a `Kernel`, `stage` and `nest` write its loops, `body` its statements, `scope` holds the
values that are known at a level; `reductions`, `scans` and `split_reductions` have states that outlive a
loop. How memory is read and written is in `memory`; kernels whose axes are cut into parts are in `cuts`;
what is chosen, rather than written, is in `tiling` one folder up.
"""
