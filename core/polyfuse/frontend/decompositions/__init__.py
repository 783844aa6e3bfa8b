"""Which operators are decomposed before lowering (`decompose`), and the decompositions that torch lacks,
or that have other numbers or memory there. Operators to operators: no loops (`lowering`), no patterns of
several operators (`rewrites`).
"""
