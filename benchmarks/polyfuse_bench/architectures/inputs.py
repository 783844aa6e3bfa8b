"""Inputs of a model of `transformers`, made from the names that its forward takes and its configuration."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from polyfuse_bench.architectures.built import BATCH, LENGTH
from polyfuse_bench.architectures.shrink import IMAGE, VOCABULARY

PARTS = (
    "text_config", "vision_config", "audio_config", "backbone_config", "encoder_config", "encoder", "decoder",
    "thinker_config", "image_config", "text_encoder", "audio_encoder",
)  # fmt: skip


def fact(config: Any, *names: str, default: Any = None) -> Any:
    """The first of these fields that the configuration, or a part of it, has."""
    for name in names:
        for holder in (config, *(getattr(config, part, None) for part in PARTS)):
            value = getattr(holder, name, None)
            if value is not None:
                return value
    return default


def pair(value: Any) -> tuple[int, int]:
    if isinstance(value, dict):
        return value.get("height", IMAGE), value.get("width", IMAGE)
    if isinstance(value, (list, tuple)):
        return (value[-2], value[-1]) if len(value) > 1 else (value[0], value[0])
    return value, value


def tokens(config: Any, length: int = LENGTH) -> torch.Tensor:
    """Numbers of tokens below those that mean something special."""
    most = min(fact(config, "vocab_size", "text_vocab_size", default=VOCABULARY), 90)
    low = min(5, most - 1)
    return torch.randint(low, most, (BATCH, length))


def padding() -> torch.Tensor:
    """A mask whose second row is shorter."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, -3:] = 0
    return mask


def picture(config: Any) -> torch.Tensor:
    channels = fact(config, "num_channels", "in_channels", "in_chans", default=3)
    height, width = pair(fact(config, "image_size", "img_size", "input_size", default=IMAGE))
    return torch.randn(BATCH, channels if isinstance(channels, int) else 3, height, width)


def film(config: Any) -> torch.Tensor:
    frames = fact(config, "num_frames", "frames_per_clip", default=2)
    still = picture(config)
    return still[:, None].repeat(1, frames if isinstance(frames, int) else 2, 1, 1, 1) * torch.randn(
        BATCH, 1, 1, 1, 1
    )


def packed_picture(config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Patches of pictures of 4 by 4 patches, one after the other, with their grid."""
    patch = fact(config, "patch_size", default=8)
    depth = fact(config, "temporal_patch_size", default=1)
    channels = fact(config, "in_channels", "num_channels", "in_chans", default=3)
    patch = patch if isinstance(patch, int) else patch[-1]
    return torch.randn(BATCH * 16, channels * depth * patch * patch), torch.tensor([[1, 4, 4]] * BATCH)


def spectrogram(config: Any) -> torch.Tensor:
    bins = fact(
        config,
        "num_mel_bins",
        "n_mels",
        "input_feat_per_channel",
        "feature_projection_input_dim",
        "input_dim",
        default=16,
    )
    return torch.randn(BATCH, bins, 2 * fact(config, "max_source_positions", default=24))


def boxes() -> torch.Tensor:
    corners = torch.randint(0, 50, (BATCH, LENGTH, 2))
    return torch.cat([corners, corners + torch.randint(1, 50, (BATCH, LENGTH, 2))], dim=-1)


def candidates(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Sets of inputs to try, the fullest first."""
    names = inspect.signature(model.forward).parameters
    config = model.config
    main = getattr(model, "main_input_name", "input_ids")
    made = dict(_made(config, names, main))
    off = {"use_cache": False} if "use_cache" in names else {}
    required = [
        name
        for name, parameter in names.items()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    ]
    tried: list[list[str]] = []
    for chosen in (
        list(made),
        [name for name in made if name != "attention_mask"],
        [
            name
            for name in made
            if not name.startswith("pixel") and "grid" not in name and "image" not in name
        ],
        [name for name in made if name in ("input_ids", "attention_mask")],
        [name for name in made if name in ("pixel_values", "input_ids")],
        [name for name in made if name == main or name in required or name == "decoder_input_ids"],
        [name for name in made if name == main],
    ):
        if chosen and chosen not in tried:
            tried.append(chosen)
            yield {**{name: made[name] for name in chosen}, **off}
    for variant in _variants(config, main, names, made):
        yield {**variant, **off}


def _made(config: Any, names: Any, main: str) -> Iterator[tuple[str, Any]]:
    for name in dict.fromkeys((*names, main)):
        if name in ("image_grid_thw", "grid_thw"):
            patches, grid = packed_picture(config)
            yield name, grid
            target = "pixel_values" if "pixel_values" in names else "hidden_states"
            yield target, patches
        elif name == "pixel_values_videos" and "pixel_values" in names:
            continue
        elif name in MAKERS and not (name == "pixel_values" and {"image_grid_thw", "grid_thw"} & set(names)):
            yield name, MAKERS[name](config)


MAKERS: dict[str, Callable[[Any], Any]] = {
    "input_ids": tokens,
    "attention_mask": lambda config: padding(),
    "decoder_input_ids": tokens,
    "pixel_values": picture,
    "pixel_values_videos": film,
    "input_values": lambda config: torch.randn(BATCH, 4000),
    "input_features": spectrogram,
    "mm_token_type_ids": lambda config: torch.zeros(BATCH, LENGTH, dtype=torch.int64),
    "bbox": lambda config: boxes(),
    "past_values": lambda config: torch.randn(
        BATCH,
        fact(config, "context_length", default=32),
        fact(config, "num_input_channels", "input_size", default=1),
    ),
}


def _variants(config: Any, main: str, names: Any, made: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Other shapes that the main input has in some models."""
    if main == "input_values":
        yield {main: torch.randn(BATCH, 1, 4000)}
        yield {
            main: torch.randn(
                BATCH, fact(config, "max_length", default=64), fact(config, "num_mel_bins", default=16)
            )
        }
        yield {main: torch.randn(BATCH, 1, 1920)}
    if main == "input_features":
        swapped = spectrogram(config).transpose(1, 2).contiguous()
        yield {main: swapped, **{name: made[name] for name in made if name == "decoder_input_ids"}}
        yield {main: swapped, "attention_mask": torch.ones(swapped.shape[:2], dtype=torch.int64)}
        yield {main: swapped, "input_features_mask": torch.ones(swapped.shape[:2], dtype=torch.bool)}
    if main in ("pixel_values", "pixel_values_videos"):
        yield {main: film(config)}
        yield {main: film(config).transpose(1, 2).contiguous()}
        still = picture(config)
        for size in (64, 96, 128, 224):
            yield {main: torch.randn(*still.shape[:2], size, size)}
        yield {
            main: torch.randn(BATCH, 3, 64, 64),
            "pixel_mask": torch.ones(BATCH, 64, 64, dtype=torch.int64),
        }
        patch = pair(fact(config, "patch_size", default=8))
        rows = torch.randn(BATCH, 16, 3 * patch[0] * patch[1])
        yield {
            main: rows,
            "pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.int64),
            "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
        }
        yield {
            main: rows,
            "attention_mask": torch.ones(BATCH, 16, dtype=torch.int64),
            "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
        }
    width = fact(config, "hidden_size", "d_model", default=32)
    if "inputs_embeds" in names or "hidden_states" in names:
        name = "inputs_embeds" if "inputs_embeds" in names else "hidden_states"
        yield {name: torch.randn(BATCH, LENGTH, width)}
