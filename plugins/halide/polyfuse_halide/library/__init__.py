"""What generated programs call: scalar operations, reductions and stages over Halide's own expressions.

Only build workers import this; the process that compiles a graph writes text and needs no Halide.
"""

from polyfuse_halide.library.automatic import *  # noqa: F403
from polyfuse_halide.library.device.math import *  # noqa: F403
from polyfuse_halide.library.device.pipeline import *  # noqa: F403
from polyfuse_halide.library.math.arithmetic import *  # noqa: F403
from polyfuse_halide.library.math.convert import *  # noqa: F403
from polyfuse_halide.library.math.exponentials import *  # noqa: F403
from polyfuse_halide.library.math.functions import *  # noqa: F403
from polyfuse_halide.library.math.random import *  # noqa: F403
from polyfuse_halide.library.math.special import *  # noqa: F403
from polyfuse_halide.library.math.trigonometry import *  # noqa: F403
from polyfuse_halide.library.schedules import *  # noqa: F403
from polyfuse_halide.library.stages import *  # noqa: F403
