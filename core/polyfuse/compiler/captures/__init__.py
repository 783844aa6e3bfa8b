"""The capture cache: what Dynamo made of frames, so that a later process traces nothing.

lookup.py    under which key a frame is looked up, when it bypasses the cache, and what is stored
objects.py   functions, classes and modules as text that is the same in every process, with what classes
             hold, which no guard compares
files.py     what files of sources held when they were imported
"""
