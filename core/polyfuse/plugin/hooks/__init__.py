"""The hooks.

specs      which hooks there are, and what each is asked
answers    what an answer must be
faults     what a plugin raised, and what its user raised
guarded    pluggy's manager, with every implementation guarded
registry   plugins that a program registers itself
"""
