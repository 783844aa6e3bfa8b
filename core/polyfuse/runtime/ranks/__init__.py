"""What the processes of a distributed program tell each other about what they compiled.

collectives.py   the collectives of a graph in their order, and how two processes' differ
agreement.py     the comparison before a graph runs for the first time, and news of failures
"""
