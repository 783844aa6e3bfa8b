"""For launchers of plugins: the current stream of a device, and whether torch's profiler is recording."""

from __future__ import annotations

from polyfuse.torch_compat.devices.launching import current_stream, current_stream_address, profiler_flag

__all__ = ["current_stream", "current_stream_address", "profiler_flag"]
