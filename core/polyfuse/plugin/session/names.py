"""The names by which users mean plugins and their options: what is wrong with one, the same everywhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from polyfuse.base.errors import BackendUnavailableError, InvalidOptionError
from polyfuse.base.log import warn_once
from polyfuse.base.text import join_words, nearest

if TYPE_CHECKING:
    from polyfuse.base.settings import Settings
    from polyfuse.plugin.session.states import PluginState


def unknown_backend(name: str, installed: Collection[str]) -> BackendUnavailableError:
    """What is raised wherever a backend is named that is not installed, with what may have been meant."""
    close = nearest(name.strip().lower(), installed)
    if close:
        fix = f"did you mean {join_words(close, 'or')}?"
    else:
        fix = f"installed are {join_words(sorted(installed)) or 'none'}"
    return BackendUnavailableError(f"backend {name!r} is not installed", fix)


def no_generator(name: str) -> BackendUnavailableError:
    """What is raised wherever a plugin is named as a backend that has only other things to offer."""
    return BackendUnavailableError(
        f"plugin {name!r} brings no code generator, so it is no backend",
        "leave its name out: what it offers is used without",
    )


def check_names(
    settings: Settings, states: Mapping[str, PluginState], generates: Callable[[str], bool]
) -> None:
    """Look at every name of a plugin in the options.

    Args:
        generates: whether an installed plugin brings a code generator.

    Raises:
        BackendUnavailableError: `backends` names one that is not installed, or that is no backend.
        InvalidOptionError: an option of a plugin that is not installed, or that has no such option.
    """
    for name in settings.backends:
        if name not in states:
            raise unknown_backend(name, states)
        if states[name].usable and not generates(name):
            raise no_generator(name)
    for name in settings.disable:
        if name not in states:
            close = nearest(name, states) or tuple(sorted(states))
            warn_once(
                "plugin",
                f"the option `disable` (POLYFUSE_DISABLE) names {name!r}, which is not installed; did "
                f"you mean {join_words(close, 'or')}?",
            )
    for full, _ in settings.plugin_options:
        plugin, _, option = full.partition(".")
        state = states.get(plugin)
        if state is None:
            fix = unknown_backend(plugin, states).fix
            raise InvalidOptionError(f"option {full!r} is for a plugin that is not installed", fix)
        declared = state.manifest.options if state.manifest is not None else None
        if declared is not None and option not in declared:
            close = nearest(option, declared) or tuple(sorted(declared))
            fix = f"did you mean {join_words([f'{plugin}.{name}' for name in close], 'or')}?"
            raise InvalidOptionError(
                f"option {full!r} is unknown", fix if close else f"plugin {plugin!r} has no options"
            )
