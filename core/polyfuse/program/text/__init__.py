"""Host programs as text: the Python module of one, and the source lines that its steps come from.

`writer` has names, values and lines; `statements` prints steps with it, and `module` puts functions, loops
over equal layers and tables together. What a step means is said in `program.steps`, never here.
"""

from polyfuse.program.text.module import python_text
from polyfuse.program.text.writer import origin_text

__all__ = ["origin_text", "python_text"]
