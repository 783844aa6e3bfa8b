"""The choice of a Halide schedule: by rules, by Halide's automatic schedulers, or pinned.

`plan` decides by rules and `estimates`, `automatic` and `autoschedule` ask Halide, `pins` reads what a user
wrote down. Decisions as data: what carries them out is `library/schedules.py`.
"""
