"""The graph cache.

lookup.py     under which key a captured graph is looked up, when it bypasses the cache
storing.py    what is stored of a graph that was compiled
traced.py     graphs that are looked up when they have been traced
record.py     what is stored, how it becomes something to call, and its portable form
"""
