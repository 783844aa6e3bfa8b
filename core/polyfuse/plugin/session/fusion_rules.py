"""Plugins' fusion rules as one object for each backend on a type of device, made once a session: what a pair
of nodes costs is the rules' own calls, and no hook is called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from polyfuse.base.errors import BackendError
from polyfuse.base.text import brief
from polyfuse.plugin.claims import No, Yes
from polyfuse.plugin.hooks.faults import is_fault

if TYPE_CHECKING:
    from polyfuse.plugin.fusion import FusionPair, FusionRule


class FusionRules:
    """The fusion rules of all plugins for one backend and type of device.

    A rule that raises, or answers something else, is named once with the error, and is not asked again.

    Args:
        rules: names of plugins with a rule each, in the order in which they are asked.
        report: called for a rule that failed, with the plugin, the error, and what it was doing.
        strict: whether what a rule raises is raised.
    """

    def __init__(
        self,
        rules: Sequence[tuple[str, FusionRule]] = (),
        report: Callable[[str, BaseException, str], None] | None = None,
        strict: bool = False,
    ) -> None:
        self._allows = tuple((plugin, rule) for plugin, rule in rules if rule.allows is not None)
        self._worth = tuple((plugin, rule) for plugin, rule in rules if rule.worth is not None)
        self._report = report
        self._strict = strict

    @property
    def refuse(self) -> bool:
        """Whether some rule may refuse a fusion."""
        return bool(self._allows)

    @property
    def weigh(self) -> bool:
        """Whether some rule says what a fusion is worth."""
        return bool(self._worth)

    def refusal(self, pair: FusionPair) -> str:
        """Why the first rule that does not allow a fusion does not, with its name; empty if all allow it."""
        for plugin, rule in self._allows:
            answer = self._asked(plugin, rule, rule.allows, (Yes, No), pair)
            if isinstance(answer, No):
                return f"{answer.reason} (rule {plugin}.{rule.name})"
        return ""

    def worth(self, pair: FusionPair) -> int:
        """Bytes by which a fusion is better than the traffic that it saves says, by all rules."""
        found = (self._asked(plugin, rule, rule.worth, (int,), pair) for plugin, rule in self._worth)
        return sum(answer for answer in found if answer is not None)

    def _asked(
        self,
        plugin: str,
        rule: FusionRule,
        function: Callable[[FusionPair], Any] | None,
        kinds: tuple[type, ...],
        pair: FusionPair,
    ) -> Any:
        """What a rule answers; None if it fails."""
        assert function is not None
        try:
            try:
                answer = function(pair)
            except Exception:
                raise
            except BaseException as error:
                if not is_fault(error):
                    raise
                raise BackendError(f"it wanted to end the process ({brief(error)})") from error
            if not isinstance(answer, kinds):
                wanted = " or ".join(kind.__name__ for kind in kinds)
                given = "None" if answer is None else f"a {type(answer).__name__}"
                raise TypeError(f"{given} is no {wanted}")
            return answer
        except Exception as error:
            if self._strict:
                raise
            self._allows = tuple(item for item in self._allows if item[1] is not rule)
            self._worth = tuple(item for item in self._worth if item[1] is not rule)
            if self._report is not None:
                self._report(plugin, error, f"asking its fusion rule `{rule.name}`")
            return None


NO_RULES: Final = FusionRules()
