"""Compiled graphs that were cut into pieces, of which those that are equal are compiled once.

calls.py    what calls the pieces in order
chains.py   pieces that follow each other, as one function to autograd
"""
