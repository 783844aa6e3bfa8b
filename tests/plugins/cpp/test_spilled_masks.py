"""Masks that do not fit into registers come back from the stack as they were, whatever lay beside them."""

from __future__ import annotations

import torch

from cpp_kernels import compiled
from cpp_layer import build, levels
from polyfuse.ir.text.parse import parse

POSITIONS = """\
kernel smallest on cpu {
  symbols s0{2..}, s1{2..}, s2{2..}, s3{2..}
  numerics fast
  axes p0{s0*s1*s2} ~ 72
  raxes r0{s3} ~ 2
  in in0: f32[s0*s1*s2*s3]
  out out0: i64[s0*s1*s2]
  size s0: i64 ~ 6
  size s1: i64 ~ 3
  size s2: i64 ~ 4
  size s3: i64 ~ 2
  loop {
    v1 = load f32 in0[r0*s0*s1*s2 + (p0 // (s0*s2))*s0*s2 + ((p0 // s0) % s2)*s0 + (p0 % s0)]
    v2 = index i64 <r0>
    v3, v4 = reduce f32 argmin (v1, v2)
  }
  once {
    store i64 set out0[(p0 // (s0*s2))*s0*s2 + ((p0 // s0) % s2)*s0 + (p0 % s0)] = v4
  }
}
"""
PAINT = """
extern "C" void paint(i64* o) {
  volatile char line[65536];
  for (i64 i = 0; i < 65536; ++i) line[i] = char(0xff);
  o[0] = line[0];
}
"""


def test_positions_of_many_divisions() -> None:
    around = torch.full((2, 4096), -100.0)
    x = around.view(-1)[4000:4144].copy_(torch.randn(144, generator=torch.Generator().manual_seed(3)))
    smallest = compiled(parse(POSITIONS))
    paint = build(levels()[0], PAINT, {"paint": "p"})["paint"]
    found = torch.full((72,), -7)
    for _ in range(3):
        paint(torch.zeros(1, dtype=torch.int64))
        smallest(x, found, 6, 3, 4, 2)
        assert torch.equal(found, x.view(2, 72).argmin(0))
