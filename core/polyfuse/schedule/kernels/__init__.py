"""From a unit of fused nodes to a `Kernel`: its loops, sections and arguments, shared where units compute
the same (`kernelize`), and which of its buffers may be one memory. Nothing is fused any more.
"""
