"""Pipelines, reductions and scans on GPUs, as generated programs call them."""
