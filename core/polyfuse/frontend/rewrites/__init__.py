"""Rewrites of captured graphs, from ATen to ATen: one file for each kind, `passes` has their order."""
