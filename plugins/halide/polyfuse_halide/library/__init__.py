"""What generated programs call: scalar operations, reductions and stages over Halide's own expressions.

Only build workers import this; the process that compiles a graph writes text and needs no Halide.
"""

from polyfuse_halide.library.arithmetic import *  # noqa: F403
from polyfuse_halide.library.automatic import *  # noqa: F403
from polyfuse_halide.library.convert import *  # noqa: F403
from polyfuse_halide.library.device import *  # noqa: F403
from polyfuse_halide.library.device_math import *  # noqa: F403
from polyfuse_halide.library.exponentials import *  # noqa: F403
from polyfuse_halide.library.functions import *  # noqa: F403
from polyfuse_halide.library.random import *  # noqa: F403
from polyfuse_halide.library.schedules import *  # noqa: F403
from polyfuse_halide.library.special import *  # noqa: F403
from polyfuse_halide.library.stages import *  # noqa: F403
from polyfuse_halide.library.trigonometry import *  # noqa: F403
