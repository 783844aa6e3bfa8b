"""Host programs as text: the Python module of one, and the source lines that its steps come from.

`writer` has names, values and lines; `statements` prints steps with it, `loops` those of equal layers, and
`module` puts functions and tables together. What a step means is said in `program.steps`, never here.
"""

from polyfuse.program.text.module import python_text
from polyfuse.program.text.writer import origin_text

__all__ = ["origin_text", "python_text"]
