"""Inference by the engines that a user could pick on a CPU: the same networks, weights, inputs and threads.

Times the cases of one row in this process. OpenVINO and ONNX Runtime are optional (`pip install
'polyfuse[peers]'`); each takes the model as its own converter writes it, with its settings for latency.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from polyfuse_bench.backends import EAGER, FREEZING, INDUCTOR, ONNXRUNTIME, OPENVINO, POLYFUSE, compiled
from polyfuse_bench.models import Prepared, Size, family, flatten_outputs, prepare
from polyfuse_bench.models.convolutions import CONVOLUTION_NETWORKS
from polyfuse_bench.models.family import Family
from polyfuse_bench.packaged import FORMS, package_call
from polyfuse_bench.side_by_side import side_by_side
from polyfuse_bench.timing import Effort

PEERS = (OPENVINO, ONNXRUNTIME)

CANDIDATES = (EAGER, INDUCTOR, f"{INDUCTOR}:{FREEZING}", *PEERS, POLYFUSE, f"{POLYFUSE}:{FREEZING}")
"""Who is compared unless the command line says otherwise."""

BATCH = 4
"""Images or sequences of a call unless the command line says otherwise."""

REST_SECONDS = 0.04
"""What passes between the samples of two engines, each of which has a pool of threads of its own."""

TRANSFORMERS = (
    *("vit", "bert", "llama", "t5"),
    *("distilbert", "gpt2", "mixtral", "whisper", "swin", "segformer", "dinov2", "clip"),
)

NETWORKS: Mapping[str, Family] = {
    **CONVOLUTION_NETWORKS,
    **{name: family(name) for name in TRANSFORMERS},
}


PRECISIONS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
"""What OpenVINO calls the types in which it may compute."""


class Flat(nn.Module):
    """A model that takes its inputs by position and returns a tuple of tensors, as converters want it."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = tuple(names)

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(flatten_outputs(self.model(**dict(zip(self.names, values, strict=True)))))


def measure(task: Mapping[str, Any]) -> dict[str, Any]:
    """The row of `task["name"]` for `task["backends"]`; a peer that is not installed is a failure of it."""
    batch = task.get("batch") or BATCH
    dtype = getattr(torch, task["dtype"])

    def built(dtype: torch.dtype) -> Prepared:
        size = Size(task.get("size", "real"))
        return prepare(NETWORKS[task["name"]], size, batch=batch, seq=task.get("seq"), dtype=dtype)

    prepared, wide = built(dtype), dtype == torch.float32
    calls: dict[str, Callable[[], list[torch.Tensor]]] = {}

    def prepared_call(backend: str) -> Callable[[], list[torch.Tensor]]:
        # Converters take f32, which is as fast or faster with them: OpenVINO is asked for the type.
        given = prepared if wide or backend not in PEERS else built(torch.float32)
        calls[backend] = engine(given, backend, Path(folder), dtype)
        return calls[backend]

    def in_f32(backend: str) -> list[torch.Tensor]:
        return [value.float() for value in calls[backend]()]

    with tempfile.TemporaryDirectory(prefix="polyfuse-bench-") as folder, torch.no_grad():
        effort, written = Effort(**task["effort"]), None if wide else in_f32
        outcome = side_by_side(task["backends"], prepared_call, effort, written=written)
    return {
        "name": task["name"],
        "shapes": {name: list(value.shape) for name, value in prepared.inputs.items()},
        "dtype": task["dtype"],
        "batch": batch,
        "threads": torch.get_num_threads(),
        "parameters": sum(parameter.numel() for parameter in prepared.model.parameters()),
        **outcome,
    }


def engine(
    prepared: Prepared, name: str, folder: Path, dtype: torch.dtype = torch.float32
) -> Callable[[], list[torch.Tensor]]:
    """A call that runs the network by the engine of this name; a converter writes into `folder`.

    `dtype` is what numbers inside may be rounded to where an engine takes a network of f32. ONNX Runtime
    computes in f32 whatever it is: it has no kernels for 16 bits on x86.
    """
    if name == OPENVINO:
        return openvino_call(prepared, dtype)
    if name == ONNXRUNTIME:
        return onnxruntime_call(prepared, folder)
    base, _, form = name.partition(":")
    if base == POLYFUSE and form in FORMS:
        values = tuple(prepared.inputs.values())
        return package_call(Flat(prepared.model, list(prepared.inputs)).eval(), values, form, folder)
    call, inputs = compiled(prepared.model, name), prepared.inputs
    return lambda: flatten_outputs(call(**inputs))


def openvino_call(prepared: Prepared, dtype: torch.dtype = torch.float32) -> Callable[[], list[torch.Tensor]]:
    """The network by OpenVINO, one stream, with as many threads as torch has, computing in `dtype`."""
    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": PRECISIONS[dtype],
    }
    return _openvino(prepared, settings)()


def openvino_requests(prepared: Prepared) -> Callable[[], Callable[[], list[torch.Tensor]]]:
    """Makes calls that run side by side, in OpenVINO's mode for throughput on all cores of this process."""
    settings = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_NUM_THREADS": len(os.sched_getaffinity(0)),
        "INFERENCE_PRECISION_HINT": PRECISIONS[torch.float32],
    }
    return _openvino(prepared, settings)


def _openvino(
    prepared: Prepared, settings: Mapping[str, Any]
) -> Callable[[], Callable[[], list[torch.Tensor]]]:
    """Makes calls of the network, each with a request of its own."""
    openvino = importlib.import_module("openvino")
    values = tuple(prepared.inputs.values())
    flat = Flat(prepared.model, list(prepared.inputs)).eval()
    try:
        model = openvino.convert_model(flat, example_input=values)
    except Exception:  # OpConversionFailure: its reader of traced models lacks an operator
        model = openvino.convert_model(torch.export.export(flat, values))
    for port, value in zip(model.inputs, values, strict=True):
        port.get_node().set_partial_shape(openvino.PartialShape(list(value.shape)))
    model.validate_nodes_and_infer_types()
    compiled_model = openvino.Core().compile_model(model, "CPU", dict(settings))
    arrays = [value.numpy() for value in values]

    def request() -> Callable[[], list[torch.Tensor]]:
        own = compiled_model.create_infer_request()

        def call() -> list[torch.Tensor]:
            results = own.infer(arrays, share_inputs=True, share_outputs=True)
            return [torch.from_numpy(array) for array in results.values()]

        return call

    return request


def onnxruntime_call(prepared: Prepared, folder: Path) -> Callable[[], list[torch.Tensor]]:
    """The network by ONNX Runtime, all graph optimizations, with as many threads as torch has.

    Its threads stop spinning when a call ends: they would take the cores of whoever is timed next.
    """
    onnxruntime = importlib.import_module("onnxruntime")
    values = tuple(prepared.inputs.values())
    file = folder / "model.onnx"
    flat = Flat(prepared.model, list(prepared.inputs)).eval()
    torch.onnx.export(flat, values, file, dynamo=True, external_data=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    feed = {port.name: value.numpy() for port, value in zip(session.get_inputs(), values, strict=True)}
    return lambda: [torch.from_numpy(array) for array in session.run(None, feed)]


def versions() -> dict[str, str]:
    """The peers that are installed, with their versions: facts of a result file."""
    found = {}
    for name in (*PEERS, "onnx"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
