"""Which operators are decomposed before lowering, and the decompositions that torch lacks."""
