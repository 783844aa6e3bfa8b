"""The plugins of one session.

discovery   which are installed
states      where each stands
manager     those that can be used, in order, loaded when first needed
refusals    what users read of those that cannot
extensions  what they add besides code generators
inventory   their code, for cache keys
"""
