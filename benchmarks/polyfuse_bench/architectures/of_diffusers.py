"""Small random models of `diffusers`. Their forwards share few names, so each has its configuration and inputs here."""

# The tables below are read by rows.
# ruff: noqa: E501
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from polyfuse_bench.architectures.built import BATCH, Built, Entry, NotBuildable, works

Inputs = Callable[[], dict[str, Any]]
WORDS, TEXT = 7, 16


@dataclass(frozen=True)
class Recipe:
    """How to make one class: its family, its small configuration, and what it is called with."""

    family: str
    config: dict[str, Any]
    inputs: Inputs


def entries() -> list[Entry]:
    import diffusers

    return [
        Entry("diffusers", name, recipe.family)
        for name, recipe in RECIPES.items()
        if hasattr(diffusers, name)
    ]


def build(name: str, seed: int) -> Built:
    import diffusers

    recipe = RECIPES[name]
    try:
        torch.manual_seed(seed)
        model = getattr(diffusers, name)(**recipe.config).eval()
        torch.manual_seed(seed + 1)
        inputs = recipe.inputs()
        works(model, inputs)
    except Exception as error:
        raise NotBuildable(f"{type(error).__name__}: {error}"[:200]) from None
    return Built(model, inputs)


def _image(
    channels: int = 4, size: int = 16, name: str = "hidden_states", **more: Callable[[], Any]
) -> Inputs:
    def make() -> dict[str, Any]:
        return {
            name: torch.randn(BATCH, channels, size, size),
            **{key: value() for key, value in more.items()},
        }

    return make


def _film(
    channels: int, frames: int, size: int, name: str = "hidden_states", **more: Callable[[], Any]
) -> Inputs:
    def make() -> dict[str, Any]:
        return {
            name: torch.randn(BATCH, channels, frames, size, size),
            **{key: value() for key, value in more.items()},
        }

    return make


def _steps() -> torch.Tensor:
    return torch.tensor([3, 7])


def _times() -> torch.Tensor:
    return torch.tensor([0.25, 0.75])


def _text(width: int = TEXT, words: int = WORDS) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(BATCH, words, width)


def _vector(width: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(BATCH, width)


def _classes() -> torch.Tensor:
    return torch.tensor([1, 4])


def _ones(*shape: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.ones(BATCH, *shape)


_BLOCKS = {"block_out_channels": (16, 32), "norm_num_groups": 4, "layers_per_block": 1}
_UNET = {
    **_BLOCKS,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": TEXT,
    "attention_head_dim": 2,
    "sample_size": 16,
}
_VAE = {
    **_BLOCKS,
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
    "latent_channels": 4,
}
_SMALL = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 16}


def _flux() -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(BATCH, 16, 8),
        "encoder_hidden_states": torch.randn(BATCH, WORDS, TEXT),
        "pooled_projections": torch.randn(BATCH, TEXT),
        "timestep": _times(),
        "img_ids": torch.randint(0, 4, (16, 3)).float(),
        "txt_ids": torch.zeros(WORDS, 3),
    }


def _ltx() -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(BATCH, 2 * 4 * 4, 8),
        "encoder_hidden_states": torch.randn(BATCH, WORDS, TEXT),
        "timestep": _steps(),
        "encoder_attention_mask": torch.ones(BATCH, WORDS),
        "num_frames": 2,
        "height": 4,
        "width": 4,
    }


RECIPES: dict[str, Recipe] = {
    "UNet2DModel": Recipe("unet_2d", {**_BLOCKS, "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D"), "attention_head_dim": 8, "sample_size": 16}, _image(3, name="sample", timestep=_steps)),
    "UNet2DConditionModel": Recipe("unet_2d_condition", _UNET, _image(name="sample", timestep=_steps, encoder_hidden_states=_text())),
    "UNet1DModel": Recipe("unet_1d", {"block_out_channels": (8, 8, 16), "extra_in_channels": 16, "sample_size": 64}, lambda: {"sample": torch.randn(BATCH, 2, 64), "timestep": _steps()}),
    "UNet3DConditionModel": Recipe("unet_3d", {**_BLOCKS, "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"), "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"), "cross_attention_dim": TEXT, "attention_head_dim": 4}, _film(4, 2, 16, "sample", timestep=_steps, encoder_hidden_states=_text())),
    "UNetMotionModel": Recipe("unet_motion", {**_BLOCKS, "down_block_types": ("CrossAttnDownBlockMotion", "DownBlockMotion"), "up_block_types": ("UpBlockMotion", "CrossAttnUpBlockMotion"), "cross_attention_dim": TEXT, "num_attention_heads": 2, "motion_num_attention_heads": 2, "sample_size": 16}, _film(4, 2, 16, "sample", timestep=_steps, encoder_hidden_states=_text())),
    "UVit2DModel": Recipe("uvit", {"hidden_size": 32, "cond_embed_dim": TEXT, "micro_cond_encode_dim": 2, "micro_cond_embed_dim": 10, "encoder_hidden_size": TEXT, "vocab_size": 32, "codebook_size": 31, "in_channels": 16, "block_out_channels": 16, "num_res_blocks": 1, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 64, "sample_size": 8}, lambda: {"input_ids": torch.randint(0, 31, (BATCH, 8, 8)), "encoder_hidden_states": torch.randn(BATCH, WORDS, TEXT), "pooled_text_emb": torch.randn(BATCH, TEXT), "micro_conds": torch.rand(BATCH, 5)}),
    "AutoencoderKL": Recipe("autoencoder_kl", _VAE, _image(3, 16, "sample")),
    "AsymmetricAutoencoderKL": Recipe("autoencoder_asym", {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2, "down_block_out_channels": (16, 32), "up_block_out_channels": (16, 32), "norm_num_groups": 4, "latent_channels": 4}, _image(3, 16, "sample")),
    "AutoencoderTiny": Recipe("autoencoder_tiny", {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "num_encoder_blocks": (1, 1), "num_decoder_blocks": (1, 1)}, _image(3, 16, "sample")),
    "VQModel": Recipe("vq_model", {**_BLOCKS, "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2, "latent_channels": 3, "num_vq_embeddings": 32}, _image(3, 16, "sample")),
    "AutoencoderKLTemporalDecoder": Recipe("autoencoder_temporal", {"block_out_channels": (32, 64), "down_block_types": ("DownEncoderBlock2D",) * 2, "latent_channels": 4, "layers_per_block": 1}, lambda: {"sample": torch.randn(4, 3, 16, 16), "num_frames": 2}),
    "AutoencoderOobleck": Recipe("autoencoder_oobleck", {"encoder_hidden_size": 12, "decoder_channels": 12, "decoder_input_channels": 6, "audio_channels": 2, "downsampling_ratios": [2, 4], "channel_multiples": [1, 2]}, lambda: {"sample": torch.randn(BATCH, 2, 64)}),
    "AutoencoderDC": Recipe("autoencoder_dc", {"in_channels": 3, "latent_channels": 4, "attention_head_dim": 2, "encoder_block_types": ("ResBlock", "EfficientViTBlock"), "decoder_block_types": ("ResBlock", "EfficientViTBlock"), "encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8), "encoder_qkv_multiscales": ((), (5,)), "decoder_qkv_multiscales": ((), (5,)), "encoder_layers_per_block": (1, 1), "decoder_layers_per_block": (1, 1), "downsample_block_type": "conv", "upsample_block_type": "interpolate", "decoder_norm_types": "rms_norm", "decoder_act_fns": "silu"}, _image(3, 16, "sample")),
    "AutoencoderKLCogVideoX": Recipe("autoencoder_cogvideox", {"down_block_types": ("CogVideoXDownBlock3D",) * 2, "up_block_types": ("CogVideoXUpBlock3D",) * 2, "block_out_channels": (8, 8), "latent_channels": 4, "layers_per_block": 1, "norm_num_groups": 2, "temporal_compression_ratio": 2}, _film(3, 2, 16, "sample")),
    "AutoencoderKLWan": Recipe("autoencoder_wan", {"base_dim": 4, "z_dim": 4, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1, "temperal_downsample": [False, True, True], "latents_mean": [0.0] * 4, "latents_std": [1.0] * 4}, _film(3, 1, 16, "sample")),
    "AutoencoderKLMochi": Recipe("autoencoder_mochi", {"latent_channels": 4, "out_channels": 3, "encoder_block_out_channels": (32, 32, 32, 32), "decoder_block_out_channels": (32, 32, 32, 32), "layers_per_block": (1, 1, 1, 1, 1)}, _film(3, 7, 16, "sample")),
    "AutoencoderKLLTXVideo": Recipe("autoencoder_ltx", {"latent_channels": 8, "block_out_channels": (8, 8, 8, 8), "decoder_block_out_channels": (8, 8, 8, 8), "layers_per_block": (1, 1, 1, 1, 1), "decoder_layers_per_block": (1, 1, 1, 1, 1), "spatio_temporal_scaling": (True, True, False, False), "decoder_spatio_temporal_scaling": (True, True, False, False), "patch_size": 1, "patch_size_t": 1}, _film(3, 9, 16, "sample")),
    "DiTTransformer2DModel": Recipe("dit", {**_SMALL, "in_channels": 4, "out_channels": 8, "sample_size": 8, "num_embeds_ada_norm": 8}, _image(4, 8, timestep=_steps, class_labels=_classes)),
    "PixArtTransformer2DModel": Recipe("pixart", {**_SMALL, "in_channels": 4, "cross_attention_dim": 32, "out_channels": 8, "sample_size": 8, "caption_channels": TEXT, "num_embeds_ada_norm": 8, "use_additional_conditions": False}, _image(4, 8, timestep=_steps, encoder_hidden_states=_text(), added_cond_kwargs=lambda: {"aspect_ratio": None, "resolution": None})),
    "Transformer2DModel": Recipe("transformer_2d", {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 32, "norm_num_groups": 4, "cross_attention_dim": TEXT}, _image(32, 8, encoder_hidden_states=_text())),
    "DualTransformer2DModel": Recipe("transformer_dual", {"num_layers": 1, "num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 32, "norm_num_groups": 4, "cross_attention_dim": TEXT}, _image(32, 8, encoder_hidden_states=_text(TEXT, 77 + 257))),
    "SD3Transformer2DModel": Recipe("sd3", {**_SMALL, "sample_size": 16, "patch_size": 2, "in_channels": 4, "out_channels": 4, "joint_attention_dim": TEXT, "caption_projection_dim": 32, "pooled_projection_dim": TEXT, "pos_embed_max_size": 16}, _image(timestep=_steps, encoder_hidden_states=_text(), pooled_projections=_vector(TEXT))),
    "FluxTransformer2DModel": Recipe("flux", {"patch_size": 1, "in_channels": 8, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": TEXT, "pooled_projection_dim": TEXT, "axes_dims_rope": (4, 4, 8)}, _flux),
    "ChromaTransformer2DModel": Recipe("chroma", {"patch_size": 1, "in_channels": 8, "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": TEXT, "axes_dims_rope": (4, 4, 8), "approximator_num_channels": 8, "approximator_hidden_dim": 32, "approximator_layers": 1}, lambda: {key: value for key, value in _flux().items() if key != "pooled_projections"}),
    "AuraFlowTransformer2DModel": Recipe("auraflow", {"sample_size": 16, "patch_size": 2, "in_channels": 4, "num_mmdit_layers": 1, "num_single_dit_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": TEXT, "caption_projection_dim": 32, "out_channels": 4, "pos_embed_max_size": 64}, _image(timestep=_times, encoder_hidden_states=_text())),
    "HunyuanDiT2DModel": Recipe("hunyuan_dit", {"sample_size": 16, "num_layers": 2, "patch_size": 2, "attention_head_dim": 16, "num_attention_heads": 2, "in_channels": 4, "hidden_size": 32, "mlp_ratio": 2.0, "cross_attention_dim": TEXT, "cross_attention_dim_t5": TEXT, "pooled_projection_dim": TEXT, "text_len": WORDS, "text_len_t5": WORDS, "use_style_cond_and_image_meta_size": False}, _image(timestep=_times, encoder_hidden_states=_text(), text_embedding_mask=_ones(WORDS), encoder_hidden_states_t5=_text(), text_embedding_mask_t5=_ones(WORDS), image_rotary_emb=lambda: (torch.randn(64, 16), torch.randn(64, 16)))),
    "CogView3PlusTransformer2DModel": Recipe("cogview3", {**_SMALL, "patch_size": 2, "in_channels": 4, "out_channels": 4, "text_embed_dim": TEXT, "time_embed_dim": 8, "condition_dim": 4, "pos_embed_max_size": 16, "sample_size": 16}, _image(timestep=_times, encoder_hidden_states=_text(), original_size=lambda: torch.full((BATCH, 2), 20.0), target_size=lambda: torch.full((BATCH, 2), 20.0), crop_coords=lambda: torch.zeros(BATCH, 2))),
    "Lumina2Transformer2DModel": Recipe("lumina2", {"sample_size": 16, "patch_size": 2, "in_channels": 4, "hidden_size": 32, "num_layers": 2, "num_refiner_layers": 1, "num_attention_heads": 2, "num_kv_heads": 1, "multiple_of": 8, "norm_eps": 1e-5, "scaling_factor": 1.0, "axes_dim_rope": (4, 4, 8), "axes_lens": (32, 32, 32), "cap_feat_dim": TEXT}, _image(timestep=_times, encoder_hidden_states=_text(), encoder_attention_mask=lambda: torch.ones(BATCH, WORDS, dtype=torch.bool))),
    "SanaTransformer2DModel": Recipe("sana", {**_SMALL, "patch_size": 1, "in_channels": 4, "out_channels": 4, "num_cross_attention_heads": 2, "cross_attention_head_dim": 16, "cross_attention_dim": 32, "caption_channels": TEXT, "sample_size": 8}, _image(4, 8, timestep=_steps, encoder_hidden_states=_text())),
    "CogVideoXTransformer3DModel": Recipe("cogvideox", {**_SMALL, "in_channels": 4, "out_channels": 4, "time_embed_dim": 2, "text_embed_dim": TEXT, "sample_width": 8, "sample_height": 8, "sample_frames": 8, "patch_size": 2, "temporal_compression_ratio": 4, "max_text_seq_length": WORDS}, lambda: {"hidden_states": torch.randn(BATCH, 2, 4, 8, 8), "timestep": _steps(), "encoder_hidden_states": torch.randn(BATCH, WORDS, TEXT)}),
    "LatteTransformer3DModel": Recipe("latte", {**_SMALL, "sample_size": 8, "num_layers": 1, "patch_size": 2, "caption_channels": TEXT, "in_channels": 4, "out_channels": 8, "cross_attention_dim": 32, "video_length": 2}, _film(4, 2, 8, timestep=_steps, encoder_hidden_states=_text(), enable_temporal_attentions=lambda: True)),
    "MochiTransformer3DModel": Recipe("mochi", {"patch_size": 2, "num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2, "pooled_projection_dim": TEXT, "in_channels": 4, "qk_norm": "rms_norm", "text_embed_dim": TEXT, "time_embed_dim": 8, "max_sequence_length": WORDS}, _film(4, 2, 8, encoder_hidden_states=_text(), timestep=_steps, encoder_attention_mask=lambda: torch.ones(BATCH, WORDS, dtype=torch.bool))),
    "LTXVideoTransformer3DModel": Recipe("ltx", {**_SMALL, "in_channels": 8, "out_channels": 8, "cross_attention_dim": 32, "caption_channels": TEXT}, _ltx),
    "WanTransformer3DModel": Recipe("wan", {**_SMALL, "patch_size": (1, 2, 2), "in_channels": 4, "out_channels": 4, "text_dim": TEXT, "freq_dim": 32, "ffn_dim": 64, "cross_attn_norm": True, "rope_max_seq_len": 32}, _film(4, 2, 8, timestep=_steps, encoder_hidden_states=_text())),
    "HunyuanVideoTransformer3DModel": Recipe("hunyuan_video", {"in_channels": 4, "out_channels": 4, "num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 1, "num_single_layers": 1, "num_refiner_layers": 1, "patch_size": 2, "patch_size_t": 1, "guidance_embeds": True, "text_embed_dim": TEXT, "pooled_projection_dim": 8, "rope_axes_dim": (4, 4, 8)}, _film(4, 1, 8, timestep=_steps, encoder_hidden_states=_text(), encoder_attention_mask=_ones(WORDS), pooled_projections=_vector(8), guidance=lambda: torch.tensor([6.0, 5.0]))),
    "AllegroTransformer3DModel": Recipe("allegro", {**_SMALL, "in_channels": 4, "out_channels": 4, "cross_attention_dim": 32, "caption_channels": TEXT, "sample_width": 8, "sample_height": 8, "sample_frames": 8, "attention_head_dim": 24}, _film(4, 2, 8, timestep=_steps, encoder_hidden_states=_text(), encoder_attention_mask=_ones(WORDS))),
    "StableAudioDiTModel": Recipe("stable_audio", {"sample_size": 4, "in_channels": 4, "num_layers": 2, "attention_head_dim": 8, "num_attention_heads": 4, "num_key_value_attention_heads": 2, "out_channels": 4, "cross_attention_dim": TEXT, "time_proj_dim": 8, "global_states_input_dim": 8, "cross_attention_input_dim": TEXT}, lambda: {"hidden_states": torch.randn(BATCH, 4, 12), "timestep": _times(), "encoder_hidden_states": torch.randn(BATCH, WORDS, TEXT), "global_hidden_states": torch.randn(BATCH, 1, 8), "rotary_embedding": (torch.randn(13, 4), torch.randn(13, 4))}),
    "PriorTransformer": Recipe("prior", {**_SMALL, "embedding_dim": 8, "num_embeddings": WORDS, "additional_embeddings": 4}, lambda: {"hidden_states": torch.randn(BATCH, 8), "timestep": _steps(), "proj_embedding": torch.randn(BATCH, 8), "encoder_hidden_states": torch.randn(BATCH, WORDS, 8)}),
    "TransformerTemporalModel": Recipe("transformer_temporal", {"num_attention_heads": 2, "attention_head_dim": 16, "in_channels": 32, "norm_num_groups": 4}, lambda: {"hidden_states": torch.randn(4, 32, 4, 4), "num_frames": 2}),
    "ControlNetModel": Recipe("controlnet", {**{k: v for k, v in _UNET.items() if k not in ("up_block_types", "sample_size")}, "conditioning_embedding_out_channels": (8, 16)}, _image(name="sample", timestep=_steps, encoder_hidden_states=_text(), controlnet_cond=lambda: torch.randn(BATCH, 3, 32, 32))),
}  # fmt: skip
