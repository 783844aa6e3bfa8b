"""What tests and notebooks look at: generated code (`generated`), what may compute an operator (`choices`),
and scopes (`scopes`).
"""
