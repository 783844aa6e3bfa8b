"""The choice of a tiling: its data, candidates, and estimates of their time and registers."""
