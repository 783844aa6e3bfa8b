"""Kernels beside the interpreter on real operands: bounds, copies, verdicts, and what is remembered of them.

* `bounds`, `reductions`, `distance`: how far each element of an honest kernel may be off.
* `operands`: copies of operands that share memory as the operands do.
* `verdict`: one launch, compared.
* `records`: kernels that agreed, and those that are barred, on disk.
* `launch`: what a program calls in place of a kernel that is to be checked.
"""
