"""What the general rules do not find: fields and inputs of single types of model."""

# The tables below are read by rows.
# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from polyfuse_bench.architectures.built import BATCH

_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
_HALF_ROPE = {**_ROPE, "partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]}

# Fields by the type of a model; of a part as "text_config.hidden_size".
OF_TRANSFORMERS: Mapping[str, Mapping[str, Any]] = {
    **{name: {"rope_parameters": _ROPE} for name in ("qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text", "glm_image_text", "glm_ocr_text", "paddleocr_vl_text")},
    **{name: {"text_config.rope_parameters": _ROPE} for name in ("qwen2_vl", "qwen2_5_vl", "glm4v", "glm_image", "glm_ocr", "glm46v", "paddleocr_vl", "glmga")},
    "glm4v_moe_text": {"rope_parameters": _HALF_ROPE},
    "glm4v_moe": {"text_config.rope_parameters": _HALF_ROPE},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2, "hidden_size": 32, "expand": 2},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "lw_detr": {"image_size": 64},
    **{
        name: {"prediction_length": 8, "context_length": 16, "num_time_features": 2, "lags_sequence": [1, 2, 3, 7]}
        for name in ("time_series_transformer", "autoformer", "informer")
    },
    "timm_backbone": {"backbone": "resnet18", "use_pretrained_backbone": False},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layer_types": ["hybrid", "linear_attention", "hybrid"], "num_hidden_layers": 3},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2, "num_dense_layers": 1},
    "efficientnet": {"hidden_dim": 2560},
    "bridgetower": {"vision_config.hidden_size": 64, "num_attention_heads": 4},
    "granite_speech5_ctc": {"context_size": 32},
    "granite_speech5_encoder": {"context_size": 32},
}  # fmt: skip

# Inputs by the type of a model, made from its configuration.
INPUTS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "perceiver": lambda config: {"inputs": torch.randn(BATCH, 20, config.d_model)},
    "blip_2_qformer": lambda config: {"query_embeds": torch.randn(BATCH, 5, config.hidden_size), "encoder_hidden_states": torch.randn(BATCH, 7, config.encoder_hidden_size)},
    "decision_transformer": lambda config: {
        "states": torch.randn(BATCH, 5, config.state_dim),
        "actions": torch.randn(BATCH, 5, config.act_dim),
        "returns_to_go": torch.randn(BATCH, 5, 1),
        "timesteps": torch.arange(5).repeat(BATCH, 1),
        "attention_mask": torch.ones(BATCH, 5),
    },
    "lxmert": lambda config: {
        "input_ids": torch.randint(5, 90, (BATCH, 13)),
        "visual_feats": torch.randn(BATCH, 7, config.visual_feat_dim),
        "visual_pos": torch.rand(BATCH, 7, config.visual_pos_dim),
    },
    "clap_audio_model": lambda config: {"input_features": torch.randn(BATCH, 1, 64, config.num_mel_bins)},
    "audioflamingo3_encoder": lambda config: {"input_features": torch.randn(BATCH, config.num_mel_bins, 2 * config.max_source_positions), "input_features_mask": torch.ones(BATCH, 2 * config.max_source_positions, dtype=torch.int64)},
    "mimi": lambda config: {"input_values": torch.randn(BATCH, 1, 3840)},
    "clap": lambda config: {
        "input_ids": torch.randint(5, 90, (BATCH, 13)),
        "input_features": torch.randn(BATCH, 1, 64, config.audio_config.num_mel_bins),
    },
    "timesfm": lambda config: {
        "past_values": torch.randn(BATCH, 64),
        "past_values_padding": torch.zeros(BATCH, 64),
        "freq": torch.zeros(BATCH, 1, dtype=torch.int64),
    },
    **{
        name: lambda config: {
            "past_values": torch.randn(BATCH, config.context_length + 7),
            "past_time_features": torch.randn(BATCH, config.context_length + 7, config.num_time_features),
            "past_observed_mask": torch.ones(BATCH, config.context_length + 7),
            "future_values": torch.randn(BATCH, config.prediction_length),
            "future_time_features": torch.randn(BATCH, config.prediction_length, config.num_time_features),
        }
        for name in ("time_series_transformer", "autoformer", "informer")
    },
}  # fmt: skip
