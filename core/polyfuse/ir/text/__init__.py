"""The representation as text: printing and reading it. ``parse(print(x)) == x``."""
