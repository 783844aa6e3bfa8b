"""What generated programs call: scalar operations, reductions and stages over Halide's own expressions.

`stages` makes a pipeline, `schedules` orders it, `reduce` (scans, too) and `combine` have states; `math` has
scalar functions, `device` what runs on GPUs. It knows no kernel of the representation, only what generated
text passes.
"""

from polyfuse_halide.library.automatic import *  # noqa: F403
from polyfuse_halide.library.device.math import *  # noqa: F403
from polyfuse_halide.library.device.pipeline import *  # noqa: F403
from polyfuse_halide.library.math.arithmetic import *  # noqa: F403
from polyfuse_halide.library.math.convert import *  # noqa: F403
from polyfuse_halide.library.math.divisions import *  # noqa: F403
from polyfuse_halide.library.math.exponentials import *  # noqa: F403
from polyfuse_halide.library.math.functions import *  # noqa: F403
from polyfuse_halide.library.math.random import *  # noqa: F403
from polyfuse_halide.library.math.special import *  # noqa: F403
from polyfuse_halide.library.math.trigonometry import *  # noqa: F403
from polyfuse_halide.library.schedules import *  # noqa: F403
from polyfuse_halide.library.stages import *  # noqa: F403
