"""One graph, any size: programs for classes of sizes.

classes.py     which classes there are
choosing.py    makes the program of a class when its sizes are first met
graphs.py      the graph of a class
stored.py      what the graph cache stores, so that a later process can make further programs
"""
