"""Freezing: what follows from the parameters of a model alone is computed once. What holds such values
while a program runs, and sees that a parameter changed, is `runtime.frozen`.
"""
