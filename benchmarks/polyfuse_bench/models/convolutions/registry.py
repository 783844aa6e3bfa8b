"""Every convolution network by name."""

from __future__ import annotations

from collections.abc import Mapping

from polyfuse_bench.models.convolutions import classic, dense, mobile, residual, signals
from polyfuse_bench.models.convolutions.layers import pixels
from polyfuse_bench.models.family import Family
from polyfuse_bench.models.registry import family

_IMAGES = {
    "resnet18": (residual.resnet18, 224),
    "resnet34": (residual.resnet34, 224),
    "resnet50": (residual.resnet50, 224),
    "resnext50": (residual.resnext50, 224),
    "se_resnet50": (residual.se_resnet50, 224),
    "regnet_y": (residual.regnet_y, 224),
    "mobilenet_v1": (mobile.mobilenet_v1, 224),
    "mobilenet_v3": (mobile.mobilenet_v3, 224),
    "efficientnet": (mobile.efficientnet, 224),
    "shufflenet": (mobile.shufflenet, 224),
    "squeezenet": (mobile.squeezenet, 224),
    "vgg16": (classic.vgg16, 112),
    "googlenet": (classic.googlenet, 224),
    "densenet121": (classic.densenet121, 224),
    "unet": (dense.unet, 160),
    "yolo": (dense.yolo, 320),
    "deeplab": (dense.deeplab, 160),
    "fcn": (dense.fcn, 160),
    "espcn": (dense.espcn, 96),
    "edsr": (dense.edsr, 64),
    "decoder": (dense.decoder, 32),
}

CONVOLUTION_NETWORKS: Mapping[str, Family] = {
    **{name: Family(name, "image", build, pixels(extent)) for name, (build, extent) in _IMAGES.items()},
    **{name: family(name) for name in ("mobilenet_v2", "convnext")},
    "wave_net": Family("wave_net", "audio", signals.wave_net, signals.waves),
    "dilated_waves": Family("dilated_waves", "audio", signals.dilated_waves, signals.waves),
    "resnet3d": Family("resnet3d", "video", signals.resnet3d, signals.clips),
}
