"""Clients of stores that can be a remote cache: `redis`, `filesystems` (what fsspec knows), `ranks` (a
process group's own store). What goes there, and what is believed of what comes back, says `cache.remote`.
"""
