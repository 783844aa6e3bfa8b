"""Device functions that generated kernels call, and what Triton's interpreter needs beside them.

`functions`, `atomics`, `combine`, `chains` and `philox` are Triton code; `libdevice` and `amd` choose what a
maker's GPU has, `interpret` what Triton's interpreter lacks, `plain_bytes` what both
take. Nothing here knows a kernel.
"""
