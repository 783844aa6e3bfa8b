"""Private names of torch that running on a device needs: CUDA graphs, streams, switches of libraries.
Public ones are used where they are needed (`runtime.devices`).
"""
