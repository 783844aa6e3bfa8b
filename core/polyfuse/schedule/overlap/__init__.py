"""The order of steps, so that computation runs while collectives communicate. What is computed stays as it
is.
"""
