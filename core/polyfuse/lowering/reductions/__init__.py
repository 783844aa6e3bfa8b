"""Reductions and scans along dimensions."""
