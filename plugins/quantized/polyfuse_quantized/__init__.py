"""Polyfuse plugin without a code generator: lowerings and rewrites of operators on quantised numbers."""
