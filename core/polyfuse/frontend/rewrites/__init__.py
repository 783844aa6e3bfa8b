"""Rewrites of captured graphs, from ATen to ATen: one file for each kind, `passes` has their order,
`tools` what they share. A rewrite replaces calls by calls with the same results; what an operator means is
no affair of theirs.
"""
