"""Candidates made by CUTLASS's own templates: their text, builds and launches."""
