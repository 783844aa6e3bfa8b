"""The rules of expressions, graphs and kernels, checked. Every error shows the faulty statement. Rules of
a backend's own are its claims' affair.
"""
