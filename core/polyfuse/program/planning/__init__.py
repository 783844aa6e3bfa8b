"""From a schedule to the steps of a host program, in order.

`planner` walks the schedule; `storage` has what buffers lie in, what is a view and which views have names,
`inputs` what is known of inputs. How memory is shared is decided before, in `program.memory` and
`program.pools`.
"""

from polyfuse.program.planning.planner import memory_plan, plan

__all__ = ["memory_plan", "plan"]
