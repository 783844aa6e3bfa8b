"""What the processes of a distributed program tell each other about what they compiled.

collectives.py   the collectives of a graph in their order, and how two processes' differ
costs.py         tables of what collectives cost
estimates.py     how long one takes, by a table or by what the device knows
agreement.py     the comparison before a graph runs for the first time, and news of failures
"""
