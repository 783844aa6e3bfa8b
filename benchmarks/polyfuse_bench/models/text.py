"""Text models: encoders, decoders and encoder-decoders."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn

from polyfuse_bench.models.family import Family, Inputs, Size

REAL_VOCABULARY = 8192
TINY_VOCABULARY = 128


def token_ids(model: nn.Module, size: Size, batch: int, seq: int) -> Inputs:
    return {"input_ids": torch.randint(3, vocabulary(size), (batch, seq))}


def masked_token_ids(model: nn.Module, size: Size, batch: int, seq: int) -> Inputs:
    """Tokens with a padding mask: the last eighth of each row is padding."""
    mask = torch.ones(batch, seq, dtype=torch.int64)
    mask[:, seq - max(seq // 8, 1) :] = 0
    return {**token_ids(model, size, batch, seq), "attention_mask": mask}


def source_and_target(model: nn.Module, size: Size, batch: int, seq: int) -> Inputs:
    ids = token_ids(model, size, batch, seq)["input_ids"]
    return {"input_ids": ids, "decoder_input_ids": torch.randint(3, vocabulary(size), (batch, seq))}


def vocabulary(size: Size) -> int:
    return size.pick(REAL_VOCABULARY, TINY_VOCABULARY)


def encoder_settings(size: Size, **changes: Any) -> dict[str, Any]:
    """The BERT-base shape, which most encoders share."""
    return {
        "vocab_size": vocabulary(size),
        "hidden_size": size.pick(768, 32),
        "num_hidden_layers": size.pick(4, 2),
        "num_attention_heads": size.pick(12, 2),
        "intermediate_size": size.pick(3072, 64),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **changes,
    }


def decoder_settings(
    size: Size, hidden: int, heads: int, kv_heads: int, ffn: int, layers: int = 2
) -> dict[str, Any]:
    """A Llama-like decoder of the given published widths."""
    return {
        "vocab_size": vocabulary(size),
        "hidden_size": size.pick(hidden, 32),
        "num_hidden_layers": size.pick(layers, 2),
        "num_attention_heads": size.pick(heads, 4),
        "num_key_value_heads": size.pick(kv_heads, 2 if kv_heads < heads else 4),
        "intermediate_size": size.pick(ffn, 64),
        "max_position_embeddings": 512,
        "use_cache": False,
    }


# ---- encoders ------------------------------------------------------------------------------------


def bert(size: Size) -> nn.Module:
    return hf.BertForMaskedLM(hf.BertConfig(**encoder_settings(size)))


def roberta(size: Size) -> nn.Module:
    return hf.RobertaForMaskedLM(hf.RobertaConfig(**encoder_settings(size, max_position_embeddings=514)))


def electra(size: Size) -> nn.Module:
    return hf.ElectraModel(hf.ElectraConfig(**encoder_settings(size, embedding_size=size.pick(128, 16))))


def albert(size: Size) -> nn.Module:
    settings = encoder_settings(size, embedding_size=size.pick(128, 16), num_hidden_groups=1)
    return hf.AlbertForMaskedLM(hf.AlbertConfig(**settings))


def distilbert(size: Size) -> nn.Module:
    return hf.DistilBertForMaskedLM(
        hf.DistilBertConfig(
            vocab_size=vocabulary(size),
            dim=size.pick(768, 32),
            n_layers=size.pick(4, 2),
            n_heads=size.pick(12, 2),
            hidden_dim=size.pick(3072, 64),
            dropout=0.0,
            attention_dropout=0.0,
        )
    )


def deberta(size: Size) -> nn.Module:
    settings = encoder_settings(
        size, num_hidden_layers=2, relative_attention=True, pos_att_type=["p2c", "c2p"]
    )
    return hf.DebertaV2ForMaskedLM(hf.DebertaV2Config(**settings, max_position_embeddings=512))


# ---- decoders ------------------------------------------------------------------------------------


def gpt2(size: Size) -> nn.Module:
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(
            vocab_size=vocabulary(size),
            n_embd=size.pick(768, 32),
            n_layer=size.pick(4, 2),
            n_head=size.pick(12, 2),
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            use_cache=False,
        )
    )


def llama(size: Size) -> nn.Module:
    return hf.LlamaForCausalLM(hf.LlamaConfig(**decoder_settings(size, 2048, 32, 8, 8192)))


def mistral(size: Size) -> nn.Module:
    settings = decoder_settings(size, 2048, 16, 8, 7168)
    return hf.MistralForCausalLM(hf.MistralConfig(**settings, sliding_window=size.pick(64, 8)))


def qwen2(size: Size) -> nn.Module:
    return hf.Qwen2ForCausalLM(hf.Qwen2Config(**decoder_settings(size, 896, 14, 2, 4864, layers=4)))


def qwen3(size: Size) -> nn.Module:
    settings = decoder_settings(size, 1024, 16, 8, 3072, layers=4)
    return hf.Qwen3ForCausalLM(hf.Qwen3Config(**settings, head_dim=size.pick(128, 8)))


def gemma(size: Size) -> nn.Module:
    settings = decoder_settings(size, 2048, 8, 1, 8192)
    return hf.GemmaForCausalLM(hf.GemmaConfig(**settings, head_dim=size.pick(256, 8)))


def gemma2(size: Size) -> nn.Module:
    settings = decoder_settings(size, 2304, 8, 4, 9216)
    settings["sliding_window"] = size.pick(64, 8)
    return hf.Gemma2ForCausalLM(hf.Gemma2Config(**settings, head_dim=size.pick(256, 8)))


def phi(size: Size) -> nn.Module:
    return hf.PhiForCausalLM(hf.PhiConfig(**decoder_settings(size, 2048, 32, 32, 8192)))


def olmo(size: Size) -> nn.Module:
    return hf.OlmoForCausalLM(hf.OlmoConfig(**decoder_settings(size, 2048, 16, 16, 8192)))


def gpt_neox(size: Size) -> nn.Module:
    settings = decoder_settings(size, 1024, 16, 16, 4096, layers=4)
    del settings["num_key_value_heads"]
    return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**settings))


def falcon(size: Size) -> nn.Module:
    return hf.FalconForCausalLM(
        hf.FalconConfig(
            vocab_size=vocabulary(size),
            hidden_size=size.pick(2048, 32),
            num_hidden_layers=2,
            num_attention_heads=size.pick(32, 4),
            multi_query=True,
            parallel_attn=True,
            bias=False,
            use_cache=False,
        )
    )


def bloom(size: Size) -> nn.Module:
    return hf.BloomForCausalLM(
        hf.BloomConfig(
            vocab_size=vocabulary(size),
            hidden_size=size.pick(1024, 32),
            n_layer=size.pick(4, 2),
            n_head=size.pick(16, 4),
            hidden_dropout=0.0,
            attention_dropout=0.0,
            use_cache=False,
        )
    )


def opt(size: Size) -> nn.Module:
    return hf.OPTForCausalLM(
        hf.OPTConfig(
            vocab_size=vocabulary(size),
            hidden_size=size.pick(768, 32),
            word_embed_proj_dim=size.pick(768, 32),
            num_hidden_layers=size.pick(4, 2),
            ffn_dim=size.pick(3072, 64),
            num_attention_heads=size.pick(12, 2),
            max_position_embeddings=512,
            dropout=0.0,
            attention_dropout=0.0,
            use_cache=False,
        )
    )


def mixtral(size: Size) -> nn.Module:
    settings = decoder_settings(size, 1024, 16, 4, 3584)
    config = hf.MixtralConfig(**settings, num_local_experts=size.pick(8, 4), num_experts_per_tok=2)
    return hf.MixtralForCausalLM(config)


# ---- encoder-decoders ----------------------------------------------------------------------------


def t5(size: Size) -> nn.Module:
    return hf.T5ForConditionalGeneration(
        hf.T5Config(
            vocab_size=vocabulary(size),
            d_model=size.pick(768, 32),
            d_kv=size.pick(64, 8),
            d_ff=size.pick(3072, 64),
            num_layers=2,
            num_decoder_layers=2,
            num_heads=size.pick(12, 4),
            dropout_rate=0.0,
            use_cache=False,
        )
    )


def bart(size: Size) -> nn.Module:
    return hf.BartForConditionalGeneration(
        hf.BartConfig(
            vocab_size=vocabulary(size),
            d_model=size.pick(768, 32),
            encoder_layers=2,
            decoder_layers=2,
            encoder_ffn_dim=size.pick(3072, 64),
            decoder_ffn_dim=size.pick(3072, 64),
            encoder_attention_heads=size.pick(12, 4),
            decoder_attention_heads=size.pick(12, 4),
            max_position_embeddings=512,
            dropout=0.0,
            attention_dropout=0.0,
            activation_dropout=0.0,
            use_cache=False,
        )
    )


ONE_SEQUENCE = {"input_ids": 1}
MASKED_SEQUENCE = {"input_ids": 1, "attention_mask": 1}
TWO_SEQUENCES = {"input_ids": 1, "decoder_input_ids": 1}

TEXT_FAMILIES = (
    Family("bert", "encoder", bert, masked_token_ids, sequence_dims=MASKED_SEQUENCE),
    Family("distilbert", "encoder", distilbert, masked_token_ids, sequence_dims=MASKED_SEQUENCE),
    Family("roberta", "encoder", roberta, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("electra", "encoder", electra, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("albert", "encoder", albert, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("deberta", "encoder", deberta, masked_token_ids, sequence_dims=MASKED_SEQUENCE),
    Family("gpt2", "decoder", gpt2, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("llama", "decoder", llama, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("mistral", "decoder", mistral, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("qwen2", "decoder", qwen2, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("qwen3", "decoder", qwen3, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("gemma", "decoder", gemma, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("gemma2", "decoder", gemma2, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("phi", "decoder", phi, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("olmo", "decoder", olmo, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("gpt_neox", "decoder", gpt_neox, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("falcon", "decoder", falcon, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("bloom", "decoder", bloom, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("opt", "decoder", opt, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("mixtral", "decoder", mixtral, token_ids, sequence_dims=ONE_SEQUENCE),
    Family("t5", "encoder-decoder", t5, source_and_target, sequence_dims=TWO_SEQUENCES),
    Family("bart", "encoder-decoder", bart, source_and_target, sequence_dims=TWO_SEQUENCES),
)
