"""A kernel as text: parsed, verified and printed."""

# begin: round-trip
from polyfuse.ir.text.parse import parse
from polyfuse.ir.text.print import text
from polyfuse.ir.verifier.verify import verify_kernel

kernel = parse("""
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
verify_kernel(kernel)
assert parse(text(kernel)) == kernel
