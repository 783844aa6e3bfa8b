"""Polyfuse plugin without a code generator: lowerings and rewrites of operators on quantised numbers.

`manifest` has the hooks, `lowerings` and `rewrites` one operator or pattern each. No target language and no
device: any code generator serves what they make.
"""
