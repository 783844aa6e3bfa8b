"""The statements of a kernel, read."""

# begin: statements
from polyfuse.ir.statements import Compute, Load, Store
from polyfuse.ir.text.parse import parse_kernel

kernel = parse_kernel("""
kernel double on cpu {
  numerics fast
  axes i0{8} ~ 8
  in in0: f32[8]
  out out0: f32[8]
  once {
    v0 = load f32 in0[i0]
    v1 = add f32 (v0, v0)
    store f32 set out0[i0] = v1
  }
}
""")
load, add, store = kernel.sections[0].body
assert isinstance(load, Load) and load.buffer == "in0"
assert isinstance(add, Compute) and (add.op, add.args) == ("add", ("v0", "v0"))
assert isinstance(store, Store) and store.mode == "set"
