"""How fast a device multiplies matrices when nothing has to be moved: the roof for matmuls.

Every multiprocessor multiplies numbers that lie in its shared memory, the same ones again and again, until
it is as warm as in long matmuls. How fast it may go depends on the power it takes: the numbers are random.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from types import MappingProxyType

import torch

HOPPER = (9, 0)
_INSTRUCTIONS: Mapping[str, tuple[str, int, str]] = MappingProxyType(
    {
        "bfloat16": ("f32.bf16.bf16", 16, ", 1, 1, 0, 0"),
        "float16": ("f32.f16.f16", 16, ", 1, 1, 0, 0"),
        "float8_e4m3fn": ("f32.e4m3.e4m3", 32, ", 1, 1"),
    }
)
"""Types and depth of the widest instruction for operands of a type, and what follows its operands."""
_GROUPS, _ROWS, _COLUMNS = 2, 64, 256
_SHARED = (_GROUPS * _ROWS + _COLUMNS) * 128
_MATMULS = 1 << 14
_SAMPLES = 24


def matrix_rate(device: str, dtype: str) -> float | None:
    """Multiplications and additions per second; None where the device or the type is not known here."""
    if torch.device(device).type != "cuda" or dtype not in _INSTRUCTIONS:
        return None
    if torch.cuda.get_device_capability(device) != HOPPER:
        return None
    kernel = torch.cuda._compile_kernel(kernel_text(dtype), "rate", compute_capability="90a")
    numbers = torch.randn(_SHARED, device=device).to(getattr(torch, dtype)).view(torch.uint8)
    unused = torch.zeros(1, device=device)
    blocks = torch.cuda.get_device_properties(device).multi_processor_count
    seconds = []
    for _ in range(_SAMPLES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        kernel((blocks, 1, 1), (128 * _GROUPS, 1, 1), [numbers, unused, _MATMULS])
        end.record()
        end.synchronize()
        seconds.append(begin.elapsed_time(end) * 1e-3)
    depth = 4 * _INSTRUCTIONS[dtype][1]
    each = 2 * _GROUPS * _ROWS * _COLUMNS * depth * _MATMULS
    return blocks * each / statistics.median(seconds[_SAMPLES // 2 :])


def kernel_text(dtype: str) -> str:
    """A kernel in which each block multiplies so often as its argument says, four instructions each time."""
    types, depth, rest = _INSTRUCTIONS[dtype]
    count = _COLUMNS // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    bound = ", ".join(f'"+f"(d[{i}])' for i in range(count))
    return f"""
typedef unsigned int u32;
typedef unsigned long long u64;
__device__ __forceinline__ void multiply(float (&d)[{count}], u64 a, u64 b) {{
  asm volatile("{{\\n.reg .pred more;\\nsetp.eq.b32 more, 0, 0;\\n"
               "wgmma.mma_async.sync.aligned.m{_ROWS}n{_COLUMNS}k{depth}.{types} {{{sums}}}, "
               "%{count}, %{count + 1}, more{rest};\\n}}"
               : {bound} : "l"(a), "l"(b));
}}
__device__ __forceinline__ u64 descriptor(u32 address) {{  // rows of 128 bytes, swizzled
  return (u64)((address & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 / 16) << 32 | (u64)1 << 62;
}}
extern "C" __global__ void __launch_bounds__({128 * _GROUPS}, 1)
rate(const unsigned char* numbers, float* out, int matmuls) {{
  __shared__ __align__(1024) unsigned char tile[{_SHARED}];
  for (int i = threadIdx.x; i < {_SHARED}; i += {128 * _GROUPS}) tile[i] = numbers[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const u32 base = (u32)__cvta_generic_to_shared(tile);
  const u64 a = descriptor(base + threadIdx.x / 128 * {_ROWS * 128});
  const u64 b = descriptor(base + {_GROUPS * _ROWS * 128});
  float d[{count}];
#pragma unroll
  for (int i = 0; i < {count}; ++i) d[i] = 0;
  for (int n = 0; n < matmuls; ++n) {{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int s = 0; s < 4; ++s) multiply(d, a + 2 * s, b + 2 * s);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
  }}
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  float sum = 0;
#pragma unroll
  for (int i = 0; i < {count}; ++i) sum += d[i];
  if (sum == 1.2345f) out[0] = sum;  // never, but the compiler does not know
}}
"""
