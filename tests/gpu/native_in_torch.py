"""A program that calls a package's library with torch's tensors on its stream.

Arguments: the package, and a file with inputs and results.
"""

import ctypes
import sys
import tempfile
import zipfile

import torch


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.c_int64 * 16),
        ("strides", ctypes.c_int64 * 16),
        ("owner", ctypes.c_void_p),
    )


class Api(ctypes.Structure):
    _fields_ = (
        ("abi", ctypes.c_int32),
        ("name", ctypes.c_char_p),
        ("inputs", ctypes.c_int32),
        ("outputs", ctypes.c_int32),
        ("input_rows", ctypes.c_void_p),
        ("output_rows", ctypes.c_void_p),
        ("create", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p))),
        (
            "run",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Tensor), ctypes.POINTER(Tensor)),
        ),
        ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(Tensor))),
        ("destroy", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
        ("error", ctypes.CFUNCTYPE(ctypes.c_char_p)),
        ("device", ctypes.c_char_p),
        ("use_stream", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
    )


def shown(tensor: torch.Tensor) -> Tensor:
    return Tensor(tensor.data_ptr(), 9, tensor.dim(), tuple(tensor.shape), tensor.stride(), None)


path = sys.argv[1]
x, expected = torch.load(sys.argv[2], weights_only=True)
x = x.cuda()
with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(path) as archive:
    library = ctypes.CDLL(archive.extract("native/forward.so", folder))
get = library.polyfuse_model
get.restype = ctypes.POINTER(Api)
api = get().contents
assert api.device == b"cuda"
model = ctypes.c_void_p()
assert api.create(path.encode(), ctypes.byref(model)) == 0, api.error()
stream = torch.cuda.Stream()
assert api.use_stream(model, stream.cuda_stream) == 0, api.error()
result = torch.empty_like(expected, device="cuda")
before = torch.cuda.mem_get_info()[0]
with torch.cuda.stream(stream):
    for turn in range(20):
        twice = x * 2 / 2
        out = Tensor() if turn % 2 else shown(result)
        inputs = (Tensor * 1)(shown(twice))
        assert api.run(model, inputs, ctypes.byref(out)) == 0, api.error()
        if turn % 2:
            assert out.owner and out.data
            api.release(ctypes.byref(out))
        if turn == 1:
            torch.cuda.synchronize()
            before = torch.cuda.mem_get_info()[0]
    seen = result.cpu()
torch.testing.assert_close(seen, expected, rtol=1e-3, atol=1e-3)
assert torch.cuda.mem_get_info()[0] >= before, "memory grows from call to call"
bad = (Tensor * 1)(shown(x[:1]))
assert api.run(model, bad, ctypes.byref(out)) and b"size 0 of" in api.error(), api.error()
api.destroy(model)
print("{}")
