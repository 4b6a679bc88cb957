"""What a browser wants to see: a view, with filter, order and page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, get_args

View = Literal["locks", "semaphores", "latches", "clients", "lock", "client"]
VIEWS = get_args(View)
SORTS: Mapping[str, tuple[str, ...]] = {
    "locks": ("name", "kind", "holder", "since", "ttl", "waiters"),
    "semaphores": ("name", "kind", "used", "free", "waiters"),
    "latches": ("name", "count", "waiters"),
    "clients": ("who", "program", "version", "since", "holds", "waits", "lost"),
}
"""By what the rows of a view can be sorted; by the first if nothing is said."""
MOST_ROWS = 200
LONGEST_NAME = 100_000


class QueryError(ValueError):
    """A query that can't be answered; the text says why."""


@dataclass(frozen=True, slots=True)
class Query:
    """What a browser wants to see. Made by `query_of`."""

    view: View = "locks"
    filter: str = ""
    """A part of the name or of the holder, or a pattern with `*`, `?` and `[`."""
    kind: str = ""
    """Of locks: only this kind."""
    sort: str = "name"
    descending: bool = False
    page: int = 1
    per: int = 50
    """Rows of a page."""
    name: str = ""
    """Of the object or client whose page it is."""

    def matches(self, *texts: str) -> bool:
        """Whether one of these texts fits the filter. Upper and lower case are the same."""
        wanted = self.filter.lower()
        if any(sign in wanted for sign in "*?["):
            return any(fnmatchcase(text.lower(), wanted) for text in texts)
        return any(wanted in text.lower() for text in texts)


def query_of(parameters: Mapping[str, str], view: str | None = None) -> Query:
    """The query of a URL. `view`: in place of the one that the URL names. Raises `QueryError`."""
    view = view or parameters.get("view", "locks")
    if view not in VIEWS:
        raise QueryError(f"there is no view {view!r}; there are {', '.join(VIEWS)}")
    name = parameters.get("name", "")
    if view in ("lock", "client") and not 0 < len(name) <= LONGEST_NAME:
        raise QueryError(f"the view {view!r} needs the parameter name")
    sorts = SORTS.get(view, ("name",))
    sort = parameters.get("sort") or sorts[0]
    if sort.removeprefix("-") not in sorts:
        raise QueryError(
            f"{view} can be sorted by {', '.join(sorts)}, or in reverse by -{sorts[0]}, but not by {sort!r}"
        )
    return Query(
        view=view,  # type: ignore[arg-type]  # it is one of VIEWS
        filter=parameters.get("filter", ""),
        kind=parameters.get("kind", ""),
        sort=sort.removeprefix("-"),
        descending=sort.startswith("-"),
        page=_number(parameters, "page", 1, 10**9),
        per=_number(parameters, "per", 50, MOST_ROWS),
        name=name,
    )


def _number(parameters: Mapping[str, str], name: str, default: int, highest: int) -> int:
    text = parameters.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 12 and 1 <= int(text) <= highest):
        raise QueryError(f"{name} must be a number from 1 to {highest}, not {text[:50]!r}")
    return int(text)
