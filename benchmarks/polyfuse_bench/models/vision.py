"""Image, audio and two-tower models."""

from __future__ import annotations

import torch
import transformers as hf
from torch import nn

from polyfuse_bench.models.family import Family, Inputs, Size
from polyfuse_bench.models.text import TINY_VOCABULARY, vocabulary

REAL_PIXELS = 224
TINY_PIXELS = 64


def image(model: nn.Module, size: Size, batch: int, seq: int) -> Inputs:
    pixels = size.pick(REAL_PIXELS, TINY_PIXELS)
    return {"pixel_values": torch.randn(batch, 3, pixels, pixels)}


def image_and_text(model: nn.Module, size: Size, batch: int, seq: int) -> Inputs:
    ids = torch.randint(3, vocabulary(size), (batch, min(seq, 64)))
    ids[:, -1] = vocabulary(size) - 1
    return {"input_ids": ids, **image(model, size, batch, seq)}


def waveform(model: nn.Module, size: Size, batch: int, seq: int) -> Inputs:
    return {"input_values": torch.randn(batch, size.pick(16000, 1600))}


def spectrogram_and_text(model: nn.Module, size: Size, batch: int, seq: int) -> Inputs:
    frames = 2 * size.pick(256, 32)
    ids = torch.randint(3, vocabulary(size), (batch, min(seq, 64)))
    return {"input_features": torch.randn(batch, 80, frames), "decoder_input_ids": ids}


# ---- images --------------------------------------------------------------------------------------


def vit(size: Size) -> nn.Module:
    return hf.ViTForImageClassification(
        hf.ViTConfig(
            hidden_size=size.pick(768, 32),
            num_hidden_layers=size.pick(4, 2),
            num_attention_heads=size.pick(12, 2),
            intermediate_size=size.pick(3072, 64),
            image_size=size.pick(REAL_PIXELS, TINY_PIXELS),
            num_labels=size.pick(1000, 10),
        )
    )


def dinov2(size: Size) -> nn.Module:
    return hf.Dinov2ForImageClassification(
        hf.Dinov2Config(
            hidden_size=size.pick(384, 32),
            num_hidden_layers=size.pick(4, 2),
            num_attention_heads=size.pick(6, 2),
            image_size=size.pick(REAL_PIXELS, TINY_PIXELS),
            patch_size=size.pick(14, 16),
            num_labels=size.pick(1000, 10),
        )
    )


def resnet(size: Size) -> nn.Module:
    tiny = size is Size.TINY
    return hf.ResNetForImageClassification(
        hf.ResNetConfig(
            embedding_size=size.pick(64, 8),
            hidden_sizes=[16, 32] if tiny else [256, 512, 1024, 2048],
            depths=[2, 1] if tiny else [2, 2, 2, 2],
            num_labels=size.pick(1000, 10),
        )
    )


def regnet(size: Size) -> nn.Module:
    tiny = size is Size.TINY
    return hf.RegNetForImageClassification(
        hf.RegNetConfig(
            embedding_size=size.pick(32, 8),
            hidden_sizes=[16, 32] if tiny else [128, 192, 512, 1088],
            depths=[1, 1] if tiny else [2, 2, 2, 1],
            groups_width=size.pick(64, 8),
            num_labels=size.pick(1000, 10),
        )
    )


def convnext(size: Size) -> nn.Module:
    tiny = size is Size.TINY
    return hf.ConvNextForImageClassification(
        hf.ConvNextConfig(
            hidden_sizes=[16, 32] if tiny else [96, 192, 384, 768],
            depths=[1, 1] if tiny else [2, 2, 2, 2],
            num_stages=2 if tiny else 4,
            num_labels=size.pick(1000, 10),
        )
    )


def mobilenet_v2(size: Size) -> nn.Module:
    config = hf.MobileNetV2Config(num_labels=size.pick(1000, 10), classifier_dropout_prob=0.0)
    if size is Size.TINY:
        config.depth_multiplier = 0.25
    return hf.MobileNetV2ForImageClassification(config)


def mobilevit(size: Size) -> nn.Module:
    tiny = size is Size.TINY
    return hf.MobileViTForImageClassification(
        hf.MobileViTConfig(
            hidden_sizes=[16, 16, 16] if tiny else [144, 192, 240],
            neck_hidden_sizes=[8, 8, 8, 16, 16, 16, 32] if tiny else [16, 32, 64, 96, 128, 160, 640],
            num_attention_heads=2 if tiny else 4,
            image_size=size.pick(256, TINY_PIXELS),
            hidden_dropout_prob=0.0,
            classifier_dropout_prob=0.0,
            num_labels=size.pick(1000, 10),
        )
    )


def swin(size: Size) -> nn.Module:
    tiny = size is Size.TINY
    return hf.SwinForImageClassification(
        hf.SwinConfig(
            image_size=size.pick(REAL_PIXELS, TINY_PIXELS),
            embed_dim=size.pick(96, 16),
            depths=[2, 2] if tiny else [2, 2, 2, 2],
            num_heads=[2, 4] if tiny else [3, 6, 12, 24],
            window_size=size.pick(7, 4),
            drop_path_rate=0.0,
            num_labels=size.pick(1000, 10),
        )
    )


def segformer(size: Size) -> nn.Module:
    tiny = size is Size.TINY
    return hf.SegformerForSemanticSegmentation(
        hf.SegformerConfig(
            depths=[1, 1, 1, 1] if tiny else [2, 2, 2, 2],
            hidden_sizes=[8, 16, 16, 32] if tiny else [32, 64, 160, 256],
            num_attention_heads=[1, 2, 2, 4] if tiny else [1, 2, 5, 8],
            decoder_hidden_size=size.pick(256, 16),
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            classifier_dropout_prob=0.0,
            drop_path_rate=0.0,
            num_labels=size.pick(150, 5),
        )
    )


# ---- two towers, audio ---------------------------------------------------------------------------


def clip(size: Size) -> nn.Module:
    text = {
        "vocab_size": vocabulary(size),
        "hidden_size": size.pick(512, 32),
        "intermediate_size": size.pick(2048, 64),
        "num_hidden_layers": 2,
        "num_attention_heads": size.pick(8, 2),
        "eos_token_id": vocabulary(size) - 1,
    }
    vision = {
        "hidden_size": size.pick(768, 32),
        "intermediate_size": size.pick(3072, 64),
        "num_hidden_layers": 2,
        "num_attention_heads": size.pick(12, 2),
        "image_size": size.pick(REAL_PIXELS, TINY_PIXELS),
        "patch_size": size.pick(32, 16),
    }
    config = hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=size.pick(512, 32))
    return hf.CLIPModel(config)


def whisper(size: Size) -> nn.Module:
    return hf.WhisperForConditionalGeneration(
        hf.WhisperConfig(
            vocab_size=vocabulary(size),
            d_model=size.pick(384, 32),
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=size.pick(6, 2),
            decoder_attention_heads=size.pick(6, 2),
            encoder_ffn_dim=size.pick(1536, 64),
            decoder_ffn_dim=size.pick(1536, 64),
            max_source_positions=size.pick(256, 32),
            max_target_positions=128,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=1,
            dropout=0.0,
            use_cache=False,
        )
    )


def wav2vec2(size: Size) -> nn.Module:
    tiny = size is Size.TINY
    model = hf.Wav2Vec2ForCTC(
        hf.Wav2Vec2Config(
            vocab_size=TINY_VOCABULARY,
            hidden_size=size.pick(768, 32),
            num_hidden_layers=2,
            num_attention_heads=size.pick(12, 2),
            intermediate_size=size.pick(3072, 64),
            conv_dim=(16,) * 3 if tiny else (512,) * 7,
            conv_stride=(5, 2, 2) if tiny else (5, 2, 2, 2, 2, 2, 2),
            conv_kernel=(10, 3, 3) if tiny else (10, 3, 3, 3, 3, 2, 2),
            num_conv_pos_embeddings=size.pick(128, 16),
            num_conv_pos_embedding_groups=size.pick(16, 4),
            hidden_dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            feat_proj_dropout=0.0,
            final_dropout=0.0,
            layerdrop=0.0,
            # Masking draws from numpy at run time: every compiler leaves the graph there.
            apply_spec_augment=False,
        )
    )
    # As in fine-tuning; otherwise forward() turns gradients on for an activation, which breaks the graph.
    model.freeze_feature_encoder()
    return model


VISION_FAMILIES = (
    Family("vit", "image", vit, image),
    Family("dinov2", "image", dinov2, image),
    Family("resnet", "image", resnet, image),
    Family("regnet", "image", regnet, image),
    Family("convnext", "image", convnext, image),
    Family("mobilenet_v2", "image", mobilenet_v2, image),
    Family("mobilevit", "image", mobilevit, image),
    Family("swin", "image", swin, image),
    Family("segformer", "image", segformer, image),
    Family("clip", "two towers", clip, image_and_text, sequence_dims={"input_ids": 1}),
    Family("whisper", "audio", whisper, spectrogram_and_text, sequence_dims={"decoder_input_ids": 1}),
    Family("wav2vec2", "audio", wav2vec2, waveform),
)
