"""Kernels compared with the interpreter on real operands, and what is remembered of the results.

* `compare`: whether two results agree, given how far each element may be off.
* `bounds`, `reductions`: how far each element of a right kernel may be off.
* `operands`: copies of operands that share memory as the operands do.
* `launch`: one launch, compared. `checked`: a kernel whose launches are compared.
* `first`: a kernel whose launch raises is replaced.
* `records`: kernels that agreed, and those that are barred, on disk. `tally`: counts of this process.
* `repro`: a launch in a file.
"""
