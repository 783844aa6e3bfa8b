"""Image kernels, and kernels that index: pooling, resampling, normalisation, gather and scatter."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from polyfuse_bench.kernels.case import Arguments, KernelCase, images, matrix, of


def max_pool(x: torch.Tensor) -> torch.Tensor:
    return F.max_pool2d(x, 3, stride=2, padding=1)


def avg_pool(x: torch.Tensor) -> torch.Tensor:
    return F.avg_pool2d(x, 3, stride=2, padding=1)


def upsample_nearest(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="nearest")


def upsample_bilinear(x: torch.Tensor) -> torch.Tensor:
    return F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)


def batch_norm_inference(
    x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return F.batch_norm(x, mean, variance, weight, bias).relu()


def batch_norm_training(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True).relu()


def group_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.group_norm(x, 4, weight, bias)


def global_average(x: torch.Tensor) -> torch.Tensor:
    return F.adaptive_avg_pool2d(x, 1)


def embedding(indices: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return F.embedding(indices, table) * 2.0


def scatter_add(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return x.scatter_add(0, index, source)


def gather(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return x.gather(1, index) + 1.0


def index_put(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return x.index_put((index,), values.exp())


def index_put_accumulate(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    return x.index_put((index,), values, accumulate=True)


def one_image(size: str) -> Arguments:
    return (images(size),)


def image_with_affine(size: str) -> Arguments:
    x = images(size)
    return x, torch.randn(x.shape[1]), torch.randn(x.shape[1])


def image_with_statistics(size: str) -> Arguments:
    x, weight, bias = image_with_affine(size)
    return x, torch.randn(x.shape[1]), torch.rand(x.shape[1]) + 0.1, weight, bias


def indices_and_table(size: str) -> Arguments:
    rows, width, count = of(size, (64, 32, 16), (8192, 768, 2048), (65536, 1024, 131072))
    return torch.randint(0, rows, (count,)), torch.randn(rows, width)


def scatter_arguments(size: str) -> Arguments:
    x = matrix(size)
    return x, torch.randint(0, x.shape[0], x.shape), torch.randn_like(x)


def gather_arguments(size: str) -> Arguments:
    x = matrix(size)
    return x, torch.randint(0, x.shape[1], x.shape)


def unique_rows(size: str) -> Arguments:
    x = matrix(size)
    index = torch.randperm(x.shape[0])[: x.shape[0] // 2]
    return x, index, torch.randn(index.shape[0], x.shape[1])


def repeated_rows(size: str) -> Arguments:
    x, index, values = unique_rows(size)
    return x, torch.randint(0, x.shape[0], index.shape), values


SPATIAL = (
    KernelCase("max_pool", "images", max_pool, one_image),
    KernelCase("max_pool_train", "images", max_pool, one_image, backward=True),
    KernelCase("avg_pool", "images", avg_pool, one_image),
    KernelCase("avg_pool_train", "images", avg_pool, one_image, backward=True),
    KernelCase("global_average", "images", global_average, one_image),
    KernelCase("upsample_nearest", "images", upsample_nearest, one_image),
    KernelCase("upsample_bilinear", "images", upsample_bilinear, one_image),
    KernelCase("batch_norm_inference", "images", batch_norm_inference, image_with_statistics),
    KernelCase(
        "batch_norm_train", "images", batch_norm_training, image_with_affine, backward=True, kinked=True
    ),
    KernelCase("group_norm", "images", group_norm, image_with_affine),
    KernelCase("embedding", "indexing", embedding, indices_and_table),
    KernelCase("embedding_train", "indexing", embedding, indices_and_table, backward=True),
    KernelCase("scatter_add", "indexing", scatter_add, scatter_arguments),
    KernelCase("gather", "indexing", gather, gather_arguments),
    KernelCase("index_put", "indexing", index_put, unique_rows),
    KernelCase("index_put_accumulate", "indexing", index_put_accumulate, repeated_rows),
)
