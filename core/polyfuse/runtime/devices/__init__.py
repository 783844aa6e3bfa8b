"""What the core asks of a device: streams, memory, limits, precision, recording.

`device.py` is the class that a plugin derives from, `graphs.py` what recording needs, `host.py` the host's
own device, `registry.py` finds the device of a type.
"""
