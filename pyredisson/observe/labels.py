"""Values of labels for metrics and spans, of which there must be few: each makes a time series of its own."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from pyredisson._diagnostics import logger

OTHER = "other"
"""The value for everything else."""
MOST_VALUES = 100
"""So many different values are used at most."""

_FIRST_PART = re.compile(r"[{\s]*([^\d:/.{}\s]*)")


def first_part(name: str) -> str:
    """The beginning of a name up to the first `:`, `/`, `.`, brace, space or digit: `order` for `order:4711`."""
    found = _FIRST_PART.match(name)
    return (found[1].strip("-_#") if found else "") or OTHER


class BoundedLabels:
    """Maps names to at most `most` different values, and everything else to `other`.

    `label` is a user's function, and may return too many values, or raise.
    """

    def __init__(self, label: Callable[[str], str], most: int = MOST_VALUES) -> None:
        self._label = label
        self._most = most
        self._values: set[str] = {OTHER}
        self._mutex = threading.Lock()
        self._full = False
        self._failed = False

    def of(self, name: str) -> str:
        """The value for a name. Called on threads of observers only."""
        value = self._computed(name)
        with self._mutex:
            if value in self._values:
                return value
            if len(self._values) <= self._most:
                self._values.add(value)
                return value
            first, self._full = not self._full, True
        if first:
            text = "more than %d different labels: the label of %r and of all further new names is %r"
            logger.warning(text, self._most, name, OTHER)
        return OTHER

    def _computed(self, name: str) -> str:
        try:
            return str(self._label(name))
        except Exception:  # noqa: BLE001
            # Without a value the event would be missing in all sums.
            if not self._failed:
                self._failed = True
                logger.exception("the label of %r could not be computed, it is %r; this is logged once", name, OTHER)
            return OTHER
