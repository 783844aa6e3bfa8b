"""The peak of memory in use, by estimates, and what lowers it.

What they are (`live`), an order of steps that needs fewer (`order`), and the fusions that need more than the
nodes one by one (`divide`).
"""
