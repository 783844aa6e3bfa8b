"""The choice of a Halide schedule: by rules, by Halide's automatic schedulers, or pinned."""
