"""The compiler: its stages in order (`stages`), the session that graphs share, and reports of what was
done.

Each stage's work is in a package of its own (`lowering`, `schedule`, `autotune`, `program`): here they are
only called in order, and what fails is replaced.
"""
