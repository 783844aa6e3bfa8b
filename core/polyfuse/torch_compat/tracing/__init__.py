"""Private names of torch that capturing a graph needs: Dynamo, AOTAutograd, fake tensors, symbolic shapes.

One file for a subject of torch's. What Polyfuse makes of it is in `frontend` and `compiler`.
"""
