"""Small configurations of `transformers`: the same architecture with few layers, narrow widths and small pictures.

Every field of a configuration is looked at by its name; what is not known keeps its default. The configuration is made
anew from the smaller fields, so that what follows from them (the width of a head, the kinds of layers) follows again.
"""

# The tables below are read by rows.
# ruff: noqa: E501
from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEADS, HEAD, LAYERS, VOCABULARY = 32, 4, 8, 2, 128
IMAGE, PATCH = 32, 8
MOST_KINDS_OF_LAYERS = 4

# The first pattern that the whole name of an integer field matches says what becomes of it.
SIZES: tuple[tuple[str, int], ...] = (
    (r".*vocab_size.*|.*vocab_size_per_layer_input|char_vocab_size|n_tokens|codebook_size|.*num_codevectors_per_group", VOCABULARY),
    (r"hash_bucket_size|num_hash_buckets|encoder_hash_byte_group_vocab", 64),
    (r".*num_register_tokens|num_codebooks|n_codebooks|num_quantizers|num_semantic_quantizers|num_codevector_groups", 2),
    (r"num_experts|n_routed_experts|num_local_experts|moe_num_experts|num_moe_experts|n_experts", 4),
    (r"num_experts_per_tok(en)?|moe_k|moe_topk|moe_router_topk|top_k_experts|num_selected_experts|moe_top_k", 2),
    (r"n_group|num_expert_group", 2),
    (r"topk_group|.*num_shared_experts|n_shared_experts|first_k_dense_replace|num_dense_layers|decoder_sparse_step", 1),
    (r"num_kv_shared_layers|num_nextn_predict_layers|moe_layer_start_index", 0),
    (r"expert_capacity", 8),
    (r"qk_rope_head_dim|qk_nope_head_dim|v_head_dim|index_head_dim|.*head_dim|d_kv|d_head|dim_head|mamba_d_head|kv_channels", HEAD),
    (r"qk_head_dim", 2 * HEAD),
    (r".*lora_rank|gated_norm_rank|.*dt_rank|time_step_rank", 16),
    (r"rotary_dim", HEAD // 2),
    (r"index_n_heads", 2),
    (r"index_topk", 8),
    (r"linear_num_key_heads|.*num_key_value_heads|.*num_kv_heads|n_kv_heads|num_kv_head", 2),
    (r"mamba_n_heads", 8),
    (r"mamba_n_groups|n_groups|upsample_groups|num_conv_pos_embedding_groups|num_groups", 2),
    (r".*chunk_size|mamba_chunk_size|block_size|chunk_length", 8),
    (r"mamba_d_state|state_size|ssm_state_size|d_state", 8),
    (r"sliding_window(_size)?|local_attention|attention_window|attention_window_size|attention_chunk_size", 8),
    (r".*n_heads|.*num_(attention_)?heads|.*attention_heads|n_head|num_head", HEADS),
    (r"num_conv_layers|num_feat_extract_layers|num_mamba_layers", LAYERS),
    (r".*num_hidden_layers|.*n_layers?|.*num_layers|.*_layers|depth|num_blocks|num_hidden_layers_.*", LAYERS),
    (r".*intermediate_size|.*ffn_dim|.*ffn_hidden_size|d_ff|dff|dim_ff|mlp_dim|.*feedforward_dim|dim_feedforward|d_inner|.*intermediate_dim", 2 * WIDTH),
    (r"image_size|max_image_size|img_size|input_image_size|pretrain_image_size|spatial_size|default_image_size", IMAGE),
    (r"patch_size|image_patch_size|vision_patch_size", PATCH),
    (r"num_mel_bins|n_mels|feature_projection_input_dim|mel_bins|input_feat_per_channel", 16),
    (r"max_source_positions", 24),
    (r"max_position_embeddings|n_positions|n_ctx|max_target_positions|max_seq_len|max_sequence_length|t2u_max_position_embeddings", 64),
    (r"num_conv_pos_embeddings", 5),
    (r"num_queries|num_query_tokens|num_latents|latent_query_num|query_length|num_object_queries", 8),
    (r"num_labels|num_classes|num_ctc_classes", 6),
    (r"num_denoising", 0),
    (r"max_2d_position_embeddings", 128),
    (r"n_embd|d_model|.*hidden_size|emb_dim|dim|embed_dim|.*embedding_dim|.*hidden_dim|.*embedding_size|projection_dim|out_dim|d_latents|reduce_dim|embedding_size|stem_channels|num_filters|mask_feature_size|feature_size_conv|.*_embed_dim|fpn_dim|codebook_dim|out_features_dim", WIDTH),
    (r"classifier_proj_size|codevector_dim|proj_codevector_dim|xvector_output_dim|.*output_channels|upsample_initial_channel|aspp_out_channels|.*_channels_dim|neck_out_channels|semantic_dim", WIDTH),
)  # fmt: skip
SMALL_STAYS = 8
# Lists of integers whose numbers count repetitions of a stage.
DEPTHS = re.compile(
    r"depths?|num_blocks|layers|.*num_layers|stage_num_blocks|.*_depths|num_hidden_layers|num_block_repeats|block_repeats|stage_repeats|.*encoder_layers"
)
WIDTHS = re.compile(
    r"hidden_sizes|embed_dims?|.*channels|channel_list|.*hidden_sizes|dims|conv_dim|backbone_channel_list|encoder_channels|neck_hidden_sizes|tdnn_dim|embed_dims|.*_dims|key_dim|num_channels_list"
)
HEAD_LISTS = re.compile(r"num_heads|num_attention_heads|.*_heads")
# A number of a token, in `config`.
TOKEN = re.compile(r".*_token_(id|index)|.*_token_ids|image_token_index|.*_id|.*_index")


@dataclasses.dataclass(frozen=True)
class Shrinking:
    """How far a configuration is made smaller.

    Attributes:
        widths: whether widths become small, or only depths, vocabularies and pictures.
        exceptions: fields by name, as `"text_config.hidden_size"` or `"hidden_size"`, that get these values.
    """

    widths: bool = True
    exceptions: Mapping[str, Any] = dataclasses.field(default_factory=dict)


_WIDE = re.compile(
    r".*(hidden|head|dim|embd|d_model|intermediate|ffn|channels|filters|rank|d_ff|inner|size_conv|kv).*"
)


def small_config(config_class: Any, how: Shrinking, path: str = "", base: Any = None) -> Any:
    """A configuration of `config_class` with small fields."""
    default = config_class() if base is None else base
    fields = _fields(config_class, default)
    exceptions = {**_of_windows(fields), **how.exceptions}
    nested = getattr(config_class, "sub_configs", None) or {}
    small: dict[str, Any] = {}
    for name in nested:
        part = getattr(default, name, None)
        if part is not None and dataclasses.is_dataclass(part):
            small[name] = small_config(type(part), how, f"{path}{name}.", part)
    layers = (
        None
        if any(DEPTHS.fullmatch(name) and isinstance(value, (list, tuple)) for name, value in fields.items())
        else _layer_choice(default)
    )
    for name, value in fields.items():
        given = exceptions.get(path + name, exceptions.get(name, _ABSENT))
        if given is not _ABSENT:
            small[name] = given
        elif (
            name not in nested
            and value is not None
            and (new := _small(name, value, how, layers)) is not _ABSENT
        ):
            small[name] = new
    wanted = vars(default).get("_out_features")
    if base is not None and wanted is not None and wanted != list(default.stage_names)[-1:]:
        # the stages of a backbone that its model reads
        small["out_features"] = list(wanted)
        small.pop("out_indices", None)
    small.update(_as_many_heads(fields, small))
    small.update(_tokens(default, fields, small))
    return config_class(**{key: value for key, value in small.items() if value is not _ABSENT})


_ABSENT: Any = object()

# Fields without which a model cannot be made, though some configurations leave them open.
NEEDED: Mapping[str, int] = {
    "vocab_size": VOCABULARY, "n_routed_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
    "num_key_value_heads": 2, "head_dim": HEAD, "moe_intermediate_size": WIDTH, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "num_attention_heads": HEADS,
}  # fmt: skip


def _of_windows(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Stages that halve a picture, each in windows, need a picture that the last window still fits into."""
    if (
        "window_size" in fields
        and isinstance(fields.get("depths"), (list, tuple))
        and isinstance(fields.get("image_size"), int)
    ):
        return {"window_size": 2, "image_size": 2 * IMAGE}
    return {}


def _as_many_heads(fields: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    """Keys have as many heads as queries where they had in the large configuration."""
    found = {}
    for name in small:
        of_queries = name.replace("key_value", "attention")
        if (
            of_queries != name
            and fields.get(of_queries) == fields.get(name)
            and isinstance(small.get(of_queries), int)
        ):
            found[name] = small[of_queries]
    return found


def _fields(config_class: Any, default: Any) -> dict[str, Any]:
    """Fields that a caller may give, with what this default holds; None where they follow from others."""
    if dataclasses.is_dataclass(config_class):
        declared = {
            field.name: (
                field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
            )
            for field in dataclasses.fields(config_class)
        }
    else:
        parameters = inspect.signature(config_class.__init__).parameters.values()
        declared = {
            p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != "self"
        }
    held = {}
    for name, value in declared.items():
        if name in _OF_THE_BASE:
            continue
        now = vars(default).get(name, value)
        # a number that was worked out is worked out again; a list over layers must be cut with the layers
        follows = value is None and not isinstance(now, (list, tuple, dict, str))
        held[name] = (NEEDED.get(name) if now is None else None) if follows else now
    return held


_OF_THE_BASE = frozenset(
    ("id2label", "label2id", "transformers_version", "architectures", "output_hidden_states", "dtype", "return_dict",
     "chunk_size_feed_forward", "problem_type", "is_encoder_decoder", "name_or_path", "output_attentions")
)  # fmt: skip


def _layer_choice(default: Any) -> tuple[int, tuple[int, ...]] | None:
    """How many layers there are, and the few to keep: the first of each kind."""
    count = vars(default).get("num_hidden_layers", getattr(type(default), "num_hidden_layers", None))
    if not isinstance(count, int):
        return None
    lists = [
        value
        for name, value in vars(default).items()
        if isinstance(value, (list, tuple)) and len(value) == count and not name.startswith("_")
    ]
    kinds: dict[tuple[str, ...], int] = {}
    for i in range(count):
        kind = tuple(
            str(entries[i]) for entries in lists if isinstance(entries[i], (str, bool)) or _is_flag(entries)
        )
        kinds.setdefault(kind, i)
    chosen = sorted(kinds.values())[:MOST_KINDS_OF_LAYERS]
    for i in range(count):
        if len(chosen) < min(LAYERS, count) and i not in chosen:
            chosen.append(i)
    return count, tuple(sorted(chosen))


def _is_flag(entries: Sequence[Any]) -> bool:
    return all(entry in (0, 1) for entry in entries)


def _small(name: str, value: Any, how: Shrinking, layers: tuple[int, tuple[int, ...]] | None) -> Any:
    if isinstance(value, (bool, str)):
        return value
    if isinstance(value, float):
        return (
            0.0
            if re.fullmatch(
                r".*(dropout|drop|layerdrop|drop_rate|pdrop|drop_path_rate)(_rate|_prob|out)?", name
            )
            else value
        )
    if isinstance(value, int):
        return _small_integer(name, value, how, layers)
    if isinstance(value, (list, tuple)):
        return _small_list(name, value, how, layers)
    if isinstance(value, dict):
        return _small_mapping(name, value)
    return _ABSENT


def _small_integer(name: str, value: int, how: Shrinking, layers: tuple[int, tuple[int, ...]] | None) -> int:
    if name == "num_hidden_layers" and layers is not None:
        return len(layers[1])
    if not how.widths and _WIDE.fullmatch(name):
        return value
    for pattern, size in SIZES:
        if re.fullmatch(pattern, name):
            return min(value, size) if value >= 0 else value
    return value


def _small_list(
    name: str, value: Sequence[Any], how: Shrinking, layers: tuple[int, tuple[int, ...]] | None
) -> Any:
    kind = type(value)
    if layers is not None and len(value) == layers[0] and layers[0] > len(layers[1]):
        return kind(value[i] for i in layers[1])
    if not value or not all(isinstance(entry, int) and not isinstance(entry, bool) for entry in value):
        return value
    if DEPTHS.fullmatch(name):
        return kind(min(entry, 1) for entry in value)
    if name in ("image_size", "img_size", "input_size", "spatial_size"):
        return kind(min(entry, IMAGE) for entry in value)
    if name in ("deepstack_visual_indexes", "fullatt_block_indexes", "global_attn_indexes", "out_indices"):
        return kind(i for i in range(min(LAYERS, len(value))))
    if how.widths and HEAD_LISTS.fullmatch(name):
        return kind(max(1, entry // min(value)) for entry in value)
    if how.widths and WIDTHS.fullmatch(name) and min(value) >= SMALL_STAYS:
        return kind(_scaled(entry, min(value)) for entry in value)
    return value


def _scaled(entry: int, least: int) -> int:
    """Widths keep their ratios, in steps of eight."""
    return max(8, round(16 * min(entry / least, 16) / 8) * 8)


def _small_mapping(name: str, value: Mapping[str, Any]) -> Any:
    if name not in ("rope_parameters", "rope_scaling"):
        return dict(value) if value and "config" not in name else _ABSENT
    return {key: _small_rope(key, entry) for key, entry in value.items()}


def _small_rope(key: str, entry: Any) -> Any:
    if isinstance(entry, dict):
        return {inner: _small_rope(inner, item) for inner, item in entry.items()}
    if key == "mrope_section":
        half = HEAD // 2
        scaled = [max(1, math.floor(part * half / sum(entry))) for part in entry]
        scaled[-1] += half - sum(scaled)
        return scaled
    return entry


def _tokens(default: Any, fields: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, int]:
    """Numbers of special tokens, all different and within the small vocabulary."""
    if not any("vocab_size" in name for name in (*fields, *vars(default))) and "text_config" not in fields:
        return {}
    found: dict[str, int] = {}
    taken = {
        value for name, value in fields.items() if TOKEN.fullmatch(name) and _number(value) and value < 96
    }
    free = (number for number in range(VOCABULARY - 2, 0, -1) if number not in taken)
    for name, value in fields.items():
        if TOKEN.fullmatch(name) and _number(value) and value >= 96 and small.get(name) == value:
            found[name] = next(free)
    return found


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
