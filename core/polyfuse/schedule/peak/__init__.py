"""Most bytes in use at once.

What they are (`live`), an order of steps that needs fewer (`order`), and the fusions that need more than the
nodes one by one (`divide`).
"""
