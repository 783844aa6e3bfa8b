"""Small random models of `transformers`: every type of model that the library's own table names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from polyfuse_bench.architectures.built import Built, Entry, NotBuildable, works
from polyfuse_bench.architectures.exceptions import INPUTS, OF_TRANSFORMERS
from polyfuse_bench.architectures.inputs import candidates
from polyfuse_bench.architectures.libraries import library
from polyfuse_bench.architectures.shrink import Shrinking, small_config

MOST_PARAMETERS = 30_000_000
# One class for each type: the bare model where there is one.
TABLES = (
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TO_IMAGE_MAPPING_NAMES",
)


def entries() -> list[Entry]:
    """Every type with a model class, in the library's order; a family is a folder of the library."""
    from transformers.models.auto import configuration_auto, modeling_auto

    types = dict.fromkeys(name for table in TABLES for name in getattr(modeling_auto, table, ()))
    folder = configuration_auto.model_type_to_module_name
    return [
        Entry("transformers", name, folder(name))
        for name in types
        if name in configuration_auto.CONFIG_MAPPING
    ]


def build(name: str, seed: int) -> Built:
    """The model of a type with random weights, and inputs that it takes."""
    config_class, model_class = _classes(name)
    reasons = []
    for how in _ways(name):
        try:
            torch.manual_seed(seed)
            config = small_config(config_class, how)
            model = _model(model_class, config)
        except Exception as error:
            reasons.append(_reason(error))
            continue
        found = _called(model, name, seed, reasons)
        if found is not None:
            return found
    raise NotBuildable(reasons[0] if reasons else "no way to make it small")


def _classes(name: str) -> tuple[Any, Any]:
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    library("timm")
    for table in TABLES:
        found = getattr(modeling_auto, table, {}).get(name)
        if found:
            found = found if isinstance(found, str) else found[0]
            return CONFIG_MAPPING[name], getattr(transformers, found)
    raise NotBuildable("no model class")


def _ways(name: str) -> Iterator[Shrinking]:
    exceptions = OF_TRANSFORMERS.get(name, {})
    yield Shrinking(True, exceptions)
    yield Shrinking(False, exceptions)


def _model(model_class: Any, config: Any) -> nn.Module:
    if hasattr(config, "use_cache"):
        config.use_cache = False
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in model_class(config).parameters())
    if count > MOST_PARAMETERS:
        raise NotBuildable(f"still {count / 1e6:.0f} million parameters")
    model: nn.Module = model_class(config)
    return model.float().eval()


def _called(model: nn.Module, name: str, seed: int, reasons: list[str]) -> Built | None:
    torch.manual_seed(seed + 1)
    own = [INPUTS[name](model.config)] if name in INPUTS else []
    for inputs in (*own, *candidates(model)):
        for _ in range(3):
            try:
                works(model, inputs)
                return Built(model, inputs)
            except Exception as error:
                reasons.append(_reason(error))
                corrected = _with_image_tokens(model, inputs, str(error))
                if corrected is None:
                    break
                inputs = corrected
    return None


def _with_image_tokens(model: nn.Module, inputs: dict[str, Any], message: str) -> dict[str, Any] | None:
    """The same with as many tokens that stand for parts of pictures (or sound) as the message asks for."""
    found = re.search(
        r"(\w+) features and \w+ tokens do not match.*?tokens:? *(\d+).*?features:? *(\d+)",
        message,
        re.IGNORECASE | re.DOTALL,
    )
    if found is None or "input_ids" not in inputs:
        return None
    kind, features = found.group(1).lower(), int(found.group(3))
    token = next(
        (
            value
            for key in (f"{kind}_token_id", f"{kind}_token_index")
            if (value := getattr(model.config, key, None)) is not None
        ),
        None,
    )
    ids: torch.Tensor = inputs["input_ids"]
    if token is None or features % ids.shape[0] or features > 512 or features == int(found.group(2)):
        return None
    image_tokens = torch.full((ids.shape[0], features // ids.shape[0]), token)
    longer = torch.cat([ids[:, :2], image_tokens, ids[:, 2:]], dim=1)
    changed = {**inputs, "input_ids": longer}
    if "attention_mask" in inputs:
        changed["attention_mask"] = torch.ones_like(longer)
    if "mm_token_type_ids" in inputs:
        changed["mm_token_type_ids"] = (longer == token).long()
    return changed


def _reason(error: BaseException) -> str:
    lines: Sequence[str] = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return text[:200]
