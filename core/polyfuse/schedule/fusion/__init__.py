"""Fusion: what may share a kernel (`legality`), what it is worth (`score`, `footprint`), and in which
order pairs are merged (`fuse`). Units are merged, never divided: that is for `schedule.peak`, which says
what to leave apart.
"""
