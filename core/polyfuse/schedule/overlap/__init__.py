"""The order of steps, so that computation runs while collectives communicate."""
