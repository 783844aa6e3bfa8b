"""Memory that a native program asks for again is that which it gave back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import polyfuse_cpp
from polyfuse_cpp.toolchain import find_toolchain

PROGRAM = """
#include <stdint.h>
#include "host.h"
#include "memory.h"
#include <stdio.h>
int main() {
  memory first, second, small;
  const i64 large = 1 << 20;
  if (!first.reserve(large) || !second.reserve(large)) return 1;
  void* const at = first.at;
  ((char*)at)[large - 1] = 1;
  first.discard();
  if (!small.reserve(1000)) return 2;
  printf("%d", small.at == at);                                 // blocks are for what is large
  if (!small.reserve(large / 4)) return 3;
  printf("%d", small.at == at);                                 // but not for a fourth of them
  if (!first.reserve(large - 100)) return 4;
  printf("%d%d", first.at == at, first.size == large);          // a smaller one fits
  second.discard();
  first.discard();
  printf("%d", block_cache.count);
  block_cache.clear();
  printf("%d", block_cache.count);
  memory huge;
  huge.size = cached_blocks::in_all + 1;
  printf("%d", block_cache.put(nullptr, huge.size));                  // more than there is room for
}
"""


def test_blocks_are_found_again(tmp_path: Path) -> None:
    source, program = tmp_path / "blocks.cpp", tmp_path / "blocks"
    source.write_text(PROGRAM, encoding="utf-8")
    headers = Path(polyfuse_cpp.__file__).parent / "host"
    toolchain = find_toolchain()
    command = [toolchain.path, *toolchain.arguments, "-std=gnu++17", "-Wall", f"-I{headers}", str(source)]
    subprocess.run([*command, "-o", str(program)], check=True, timeout=600)
    found = subprocess.run([str(program)], check=True, timeout=600, capture_output=True, text=True)
    assert found.stdout == "0011200"
