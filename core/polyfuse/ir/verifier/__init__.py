"""The rules of expressions, graphs and kernels, checked. Every error shows the faulty statement."""
