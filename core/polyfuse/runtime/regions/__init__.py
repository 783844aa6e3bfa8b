"""Compiled graphs that were cut into regions, of which those that are equal are compiled once.

calls.py    what calls the regions in order
chains.py   regions that follow each other, as one function to autograd
"""
