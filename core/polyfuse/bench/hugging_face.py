"""Models of `transformers` with random weights, made from a configuration; nothing is downloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from polyfuse.base.errors import PolyfuseError

_BATCH, _SEQUENCE = 1, 128
_MOST_PARAMETERS = 2_000_000_000
"""Above this, random weights alone take longer to make than most budgets."""


def hugging_face_model(
    name: str, sizes: Mapping[str, int], device: str, training: bool
) -> tuple[torch.nn.Module, dict[str, Any], str]:
    """A model, its inputs, and what it is.

    Args:
        name: a model type (`bert`), a class of configurations (`BertConfig`) or of models
            (`LlamaForCausalLM`), then changes of the configuration, separated by commas:
            `llama,num_hidden_layers=2`.
        sizes: `batch` and `sequence`.
        device: where it is put; empty: an accelerator if there is one.
        training: whether gradients are needed.

    Raises:
        PolyfuseError: `transformers` is not installed, or has nothing of this name.
    """
    try:
        import transformers
    except ImportError as error:
        raise PolyfuseError(
            "hf: needs the package transformers", "run pip install 'polyfuse[demo]'"
        ) from error
    word, *changes = name.split(",")
    config, maker = _config(transformers, word)
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals or not hasattr(config, key):
            raise PolyfuseError(f"configuration {word!r} has no {change!r}", "write name=value")
        setattr(config, key, _value(value))
    if hasattr(config, "use_cache"):
        config.use_cache = False
    with torch.device("meta"):
        count = sum(p.numel() for p in maker(config).parameters())
    if count > _MOST_PARAMETERS:
        raise PolyfuseError(
            f"{word} has {count / 1e9:.1f} billion parameters by default",
            f"make it smaller, as in hf:{word},num_hidden_layers=2",
        )
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = device or (accelerator.type if accelerator is not None else "cpu")
    model = maker(config).train(training).requires_grad_(training).to(device)
    batch, sequence = sizes.get("batch", _BATCH), sizes.get("sequence", _SEQUENCE)
    inputs = {key: x.to(device) for key, x in _inputs(model, config, batch, sequence).items()}
    layers = getattr(config, "num_hidden_layers", "?")
    return model, inputs, f"{type(model).__name__}, {count / 1e6:.1f} M parameters, {layers} layers"


def _config(transformers: Any, word: str) -> tuple[Any, Any]:
    """A configuration, and what makes a model of it."""
    named = getattr(transformers, word, None)
    if named is not None and getattr(named, "config_class", None) is not None:
        return named.config_class(), named
    if isinstance(named, type) and issubclass(named, transformers.PretrainedConfig):
        return named(), transformers.AutoModel.from_config
    try:
        return transformers.AutoConfig.for_model(word), transformers.AutoModel.from_config
    except ValueError as error:
        raise PolyfuseError(
            f"transformers knows no model {word!r}",
            "name a model type such as bert, or a class such as LlamaForCausalLM",
        ) from error


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _inputs(model: Any, config: Any, batch: int, sequence: int) -> dict[str, torch.Tensor]:
    """Random inputs of the model's main kind."""
    main = getattr(model, "main_input_name", "input_ids")
    if main == "pixel_values":
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        return {main: torch.randn(batch, getattr(config, "num_channels", 3), height, width)}
    if main == "input_ids":
        limit = getattr(config, "max_position_embeddings", None) or sequence
        tokens = torch.randint(0, config.vocab_size, (batch, min(sequence, limit)))
        both = getattr(config, "is_encoder_decoder", False)
        return {main: tokens, "decoder_input_ids": tokens} if both else {main: tokens}
    raise PolyfuseError(
        f"inputs {main!r} of {type(model).__name__} are not known", "write a module:function that makes them"
    )
