"""accelerate: the name of the backend in its closed list."""

from __future__ import annotations

from polyfuse.base.errors import UnsupportedError

_NAME = "POLYFUSE"


def register() -> None:
    """Add `polyfuse` to the backends that accelerate, and with it transformers' `Trainer`, accepts by name.

    Then `Accelerator(dynamo_backend="polyfuse")`, the variable `ACCELERATE_DYNAMO_BACKEND=polyfuse` and
    `TrainingArguments(torch_compile_backend="polyfuse")` work in this process. Calling it again does nothing.
    Nothing calls it by itself.

    Raises:
        ImportError: accelerate is not installed.
        UnsupportedError: accelerate keeps its list in another form.
    """
    from accelerate.utils.dataclasses import DynamoBackend

    if _NAME in getattr(DynamoBackend, "__members__", ()):
        return
    try:
        member = str.__new__(DynamoBackend, _NAME)
        member._name_ = member._value_ = _NAME
        names, by_name, by_value = (
            DynamoBackend._member_names_,
            DynamoBackend._member_map_,
            DynamoBackend._value2member_map_,
        )
        names.append(_NAME)
        by_name[_NAME] = by_value[_NAME] = member
        type.__setattr__(DynamoBackend, _NAME, member)
    except (AttributeError, TypeError) as error:
        raise UnsupportedError(
            f"accelerate keeps its list of backends in another form ({error})",
            'compile the model before: model.compile(backend="polyfuse")',
        ) from error
