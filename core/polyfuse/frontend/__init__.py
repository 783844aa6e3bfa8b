"""From what Dynamo captured to functional ATen graphs, ready for lowering.

`capture.compile_graph` runs AOTAutograd; `traced` hands each resulting graph, as an `AtenGraph`, to an inner
compiler. On the way `decompose` breaks composite operators up and `rewrites` simplifies the graph.
"""
