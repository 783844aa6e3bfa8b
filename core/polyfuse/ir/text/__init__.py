"""The representation as text: printing and reading it. ``parse(print(x)) == x``. Nothing is simplified or
checked on the way: that is for `rewrite` and `ir.verifier`.
"""
