"""From a group of fused nodes to a `Kernel`: loops, sections, aliases, and which backend generates it."""
