"""The intermediate representation: scalar expressions, graph nodes, kernels."""
