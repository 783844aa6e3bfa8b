"""Private names of torch that running on a device needs: CUDA graphs, streams, switches of libraries."""
