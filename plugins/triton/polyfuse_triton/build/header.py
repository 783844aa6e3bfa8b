"""How the text of every generated module begins. Apart, because build workers import it and little else."""

from __future__ import annotations

HEADER = """import triton
import triton.language as tl
from polyfuse_triton.device.functions import *
"""
