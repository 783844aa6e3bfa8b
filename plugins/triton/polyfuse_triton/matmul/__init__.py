"""A matmul with prologue and epilogue as the text of one Triton function.

`plan` is the data, `tiling` and `few_rows` choose it, `kernel` and `multiply_add` write it, `coordinates`
names its axes. Prologues and epilogues are statements like any others: `loops` writes them.
"""
