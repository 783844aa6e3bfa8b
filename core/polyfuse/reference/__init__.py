"""The reference interpreter as a backend: the oracle, and what runs where no code generator can. What
statements mean is in `ir.interpreter`.
"""
