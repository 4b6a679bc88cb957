"""From a snapshot and a query to what a browser shows: rows that are filtered, sorted and cut into pages."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from starlette.exceptions import HTTPException

from pyredisson._diagnostics import readable
from pyredisson.dashboard.snapshot import PastHold, Seen, Snapshot, sole_client, waiting_of, who
from pyredisson.holder import Holder
from pyredisson.inspection.model import DISTANT, LOCKS, ClientState, Owner, WaitingOwner

ViewName = Literal["locks", "semaphores", "latches", "clients", "lock", "client", "graph", "wall"]
VIEWS = get_args(ViewName)
SORTS: Mapping[str, tuple[str, ...]] = {
    "locks": ("name", "kind", "holder", "since", "ttl", "waiters"),
    "semaphores": ("name", "kind", "used", "free", "waiters"),
    "latches": ("name", "count", "waiters"),
    "clients": ("who", "program", "version", "since", "holds", "waits", "lost"),
}
"""By what the rows of a view can be sorted; by the first if nothing is said."""
MOST_ROWS = 200
LONGEST_NAME = 100_000
Json = dict[str, Any]
T = TypeVar("T")
KINDS = {
    "locks": LOCKS,
    "semaphores": ("semaphore", "permits"),
    "latches": ("latch",),
}
"""The kinds of objects that a view lists."""
ENDLESS = -1
"""In place of a TTL: there is none, as PTTL says it."""
MOST_HOLDS = 1000
MOST_EDGES = 50
"""Holds and waits in the graph."""
MOST_ON_WALL = 10
"""Locks, and clients, that are shown on a wall."""
METRICS_TYPE = "text/plain; version=0.0.4"


@dataclass(frozen=True, slots=True)
class Query:
    """What a browser wants to see. Made by `query_of`."""

    view: ViewName = "locks"
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
    """The query of a URL. `view`: in place of the one that the URL names. Raises `HTTPException` (400)."""
    view = view or parameters.get("view", "locks")
    if view not in VIEWS:
        raise HTTPException(400, f"there is no view {view!r}; there are {', '.join(VIEWS)}\n")
    name = parameters.get("name", "")
    if view in ("lock", "client") and not 0 < len(name) <= LONGEST_NAME:
        raise HTTPException(400, f"the view {view!r} needs the parameter name\n")
    sorts = SORTS.get(view, ("name",))
    sort = parameters.get("sort") or sorts[0]
    if sort.removeprefix("-") not in sorts:
        ways = f"{', '.join(sorts)}, or in reverse by -{sorts[0]}"
        raise HTTPException(400, f"{view} can be sorted by {ways}, but not by {sort!r}\n")
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
        raise HTTPException(400, f"{name} must be a number from 1 to {highest}, not {text[:50]!r}\n")
    return int(text)


# --- What it is sent. Pure functions


class View(NamedTuple):
    """What a browser is sent, and which objects it has on its page."""

    content: Json
    keys: frozenset[bytes] = frozenset()


def view_of(snapshot: Snapshot, query: Query) -> View:
    match query.view:
        case "lock":
            return View(lock_page(snapshot, query.name))
        case "client":
            return View(client_page(snapshot, query.name))
        case "graph":
            return _contended_view(snapshot, graph)
        case "wall":
            return _contended_view(snapshot, wall)
        case "clients":
            clients = [row for row in client_rows(snapshot) if query.matches(row["who"], row["id"], row["program"])]
            page, rows = _page(clients, query, lambda row: row[query.sort])
            return View(page | {"rows": rows})
        case view:
            found = [seen for seen in snapshot.seen.values() if _wanted(seen, view, query)]
            page, shown = _page(found, query, _SORTED_BY[query.sort])
            rows = [object_row(seen, snapshot.at) for seen in shown]
            return View(page | {"rows": rows}, frozenset(seen.state.key for seen in shown))


def _wanted(seen: Seen, view: str, query: Query) -> bool:
    state = seen.state
    used = state.in_use if view == "locks" else state.held
    fits = used and state.kind in KINDS[view] and query.kind in ("", state.kind)
    return fits and query.matches(state.name, seen.holder)


# --- Pages


def _page(found: list[T], query: Query, order: Callable[[T], Any]) -> tuple[Json, list[T]]:
    """Which page of a list is shown, and its part of the list. A page beyond the end is the last one."""
    pages = max(1, math.ceil(len(found) / query.per))
    number = min(query.page, pages)
    ordered = sorted(found, key=order, reverse=query.descending)
    shown = ordered[(number - 1) * query.per : number * query.per]
    return {"total": len(found), "page": number, "pages": pages}, shown


# The name comes last in each, so that the order of equal rows never changes.
_SORTED_BY: dict[str, Callable[[Seen], Any]] = {
    "name": lambda seen: seen.state.name,
    "kind": lambda seen: (seen.state.kind, seen.state.name),
    "holder": lambda seen: (seen.holder == "", seen.holder, seen.state.name),
    "since": lambda seen: (seen.state.since or DISTANT, seen.state.name),
    "ttl": lambda seen: (math.inf if seen.state.time_to_live is None else seen.state.time_to_live, seen.state.name),
    "waiters": lambda seen: (seen.state.waiting, seen.state.name),
    "used": lambda seen: (seen.state.owner_count, seen.state.name),
    "free": lambda seen: (seen.state.free or 0, seen.state.name),
    "count": lambda seen: (seen.state.count or 0, seen.state.name),
}


# --- Objects


def object_row(seen: Seen, now: float) -> Json:
    """One row of a list of objects. `now`: the moment of the snapshot."""
    state = seen.state
    return {
        "name": state.name,
        "kind": state.kind,
        "certain": state.certain,
        "held": state.held,
        "holder": seen.holder,
        "client": sole_client(state),
        "since": _moment(state.since),
        "ttl": _left(state.time_to_live, now - seen.at),
        "scale": seen.scale,
        "owners": state.owner_count,
        "waiters": state.waiter_count,
        "listeners": state.waiting_clients,
        "free": state.free,
        "permits": state.permits,
        "count": state.count,
        "token": state.token,
    }


def lock_page(snapshot: Snapshot, name: str) -> Json:
    """Everything about one object. Without a row if it was not read yet."""
    seen = snapshot.named(name)
    if seen is None:
        return {"name": name, "row": None}
    state, passed = seen.state, snapshot.at - seen.at
    return {
        "name": name,
        "row": object_row(seen, snapshot.at),
        "why": state.why,
        "server": state.server,
        "owners": [_owner(owner, passed) for owner in state.owners],
        "queue": [_waiter(waiter, passed) for waiter in state.waiters],
        "past": [_past(hold, snapshot) for hold in reversed(snapshot.past.get(state.key, ()))],
        "companions": [
            {
                "key": readable(each.key),
                "type": each.type,
                "ttl": _left(each.time_to_live, passed),
                "purpose": each.purpose,
            }
            for each in state.companions
        ],
    }


def _owner(owner: Owner, passed: float) -> Json:
    return {
        "raw": owner.raw,
        "who": who(owner.holder),
        "client": owner.holder.client_id,
        "levels": owner.levels,
        "side": owner.side,
        "kept": owner.kept,
        "foreign": owner.holder.foreign,
        "since": _moment(owner.holder.since),
        "ttl": _left(owner.holder.time_to_live, passed),
    }


def _waiter(waiter: WaitingOwner, passed: float) -> Json:
    lasts = _left(waiter.place_lasts, passed)
    return _owner(waiter.owner, passed) | {"place": waiter.place, "alive": waiter.alive, "lasts": lasts}


def _past(hold: PastHold, snapshot: Snapshot) -> Json:
    now = datetime.fromtimestamp(snapshot.time, UTC)
    began = hold.since or now - timedelta(seconds=snapshot.at - hold.first)
    until = max(began, now - timedelta(seconds=snapshot.at - hold.until))
    return {
        "who": hold.holder,
        "client": hold.client,
        "from": _moment(began),
        "until": _moment(until),
        "waiters": hold.most_waiting,
    }


# --- The graph of waits, and the screen on a wall


def _contended_view(snapshot: Snapshot, content: Callable[[Snapshot, list[Seen]], Json]) -> View:
    """A view of the locks and semaphores that have waiters, the most contended one first."""
    kinds = (*KINDS["locks"], *KINDS["semaphores"])
    waited_for = [seen for seen in snapshot.seen.values() if waiting_of(seen.state) and seen.state.kind in kinds]
    waited_for.sort(key=lambda seen: (-waiting_of(seen.state), seen.state.name))
    return View(content(snapshot, waited_for), frozenset(seen.state.key for seen in waited_for[:MOST_ROWS]))


def graph(snapshot: Snapshot, contended: list[Seen]) -> Json:
    """The holders and the waiters of these objects, as edges between owners and locks. Deadlocks come first."""
    in_cycles = {key for _, _, key in snapshot.deadlocked}
    first = sorted(contended, key=lambda seen: seen.state.key not in in_cycles)
    edges: list[tuple[bool, int, int, str, Owner]] = []
    for number, seen in enumerate(first[:MOST_ROWS]):
        waiters = [waiter.owner for waiter in seen.state.waiters]
        for what, owners in (("holds", seen.state.owners), ("waits", waiters)):
            for place, owner in enumerate(owners):
                edge = (owner.holder.client_id, owner.holder.owner_id, seen.state.key)
                edges.append((edge not in snapshot.deadlocked, place, number, what, owner))
    # Of each lock the first holder and the first waiter, then the second ones: no lock takes all the place.
    edges.sort(key=lambda each: each[:2])
    shown = [
        _owner(owner, 0.0)
        | {"owner": _owner_node(owner), "what": what, "deadlock": not apart, "lock": number}
        | {"name": first[number].state.name, "waiting": waiting_of(first[number].state)}
        for apart, _, number, what, owner in edges[:MOST_EDGES]
    ]
    total = sum(len(seen.state.owners) + len(seen.state.waiters) for seen in contended)
    return {"edges": shown, "left_out": total - len(shown)}


def _owner_node(owner: Owner) -> str:
    """The same text for all holds and waits of one owner. `raw` has the side of a read-write lock, too."""
    holder = owner.holder
    return owner.raw if holder.client_id is None else f"{holder.client_id}:{holder.owner_id}"


def wall(snapshot: Snapshot, contended: list[Seen]) -> Json:
    clients = client_rows(snapshot)
    losers = sorted((row for row in clients if row["lost"]), key=lambda row: (-row["lost"], row["who"]))
    rows = [object_row(seen, snapshot.at) | {"waiting": waiting_of(seen.state)} for seen in contended[:MOST_ON_WALL]]
    return {"rows": rows, "clients": losers[:MOST_ON_WALL], "lost": sum(row["lost"] for row in clients)}


# --- Clients


def client_rows(snapshot: Snapshot) -> list[Json]:
    """A row for each client: clients that announce themselves, and others that hold something or wait in a queue."""
    holds: dict[str, int] = {}
    unknown: dict[str, Holder] = {}
    for seen in snapshot.seen.values():
        state = seen.state
        for owner in (*state.owners, *(waiter.owner for waiter in state.waiters)):
            client = owner.holder.client_id
            if client is None:
                continue
            holds[client] = holds.get(client, 0) + (owner.levels > 0)
            if client not in snapshot.clients:
                unknown[client] = owner.holder
    rows = []
    for known in snapshot.clients.values():
        here = Holder(known.id, known.name or None, known.host, known.pid, program=known.program)
        rows.append(_client_row(known, here, holds.get(known.id, 0)))
    for id_, holder in unknown.items():
        nothing_announced = ClientState(id_, program="Redisson" if holder.foreign else "")
        without_thread = Holder(id_, foreign=holder.foreign)
        row = _client_row(nothing_announced, without_thread, holds[id_])
        rows.append(row | {"announced": False, "ttl": None})
    return rows


def _client_row(client: ClientState, here: Holder, held: int) -> Json:
    return {
        "id": client.id,
        "who": who(here),
        "announced": True,
        "program": client.program,
        "version": client.version,
        "since": _moment(client.since) or "",
        "ttl": _left(client.time_to_live, 0.0),
        "holds": max(client.hold_count, held),
        "waits": client.waits,
        "waited": round(client.waited, 3),
        "lost": client.lost,
    }


def client_page(snapshot: Snapshot, id_: str) -> Json:
    row = next((row for row in client_rows(snapshot) if row["id"] == id_), None)
    holds: list[Json] = []
    waits: list[Json] = []
    for seen in sorted(snapshot.seen.values(), key=_SORTED_BY["name"]):
        state, passed = seen.state, snapshot.at - seen.at
        here = {"name": state.name, "kind": state.kind, "scale": seen.scale}
        holds += [here | _owner(owner, passed) for owner in state.owners if owner.holder.client_id == id_]
        waits += [here | _waiter(each, passed) for each in state.waiters if each.owner.holder.client_id == id_]
    return {"id": id_, "row": row, "holds": holds[:MOST_HOLDS], "waits": waits[:MOST_HOLDS]}


# --- All of them


def totals_of(snapshot: Snapshot) -> Json:
    """What stands above each view."""
    states = [seen.state for seen in snapshot.seen.values()]
    return {
        **{view: sum(state.held and state.kind in kinds for state in states) for view, kinds in KINDS.items()},
        "clients": len(client_rows(snapshot)),
        "held": snapshot.held,
        "waiting": snapshot.waiting,
        "scanned": snapshot.scanned,
        "keys": snapshot.total,
        "complete": snapshot.complete,
        "round_trip": snapshot.round_trip,
        "away_since": _moment(snapshot.away_since),
        "problems": snapshot.problems,
        "deadlocks": snapshot.deadlocks,
    }


def _left(time_to_live: float | None, passed: float) -> float | None:
    """Seconds that are left of a TTL that was read so long ago."""
    if time_to_live is None:
        return None
    return ENDLESS if math.isinf(time_to_live) else round(max(time_to_live - passed, 0.0), 3)


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- The metrics for Prometheus, in its text format


def metrics_of(snapshot: Snapshot) -> str:
    """All metrics. While no server replies, the ones of what it holds are left out: nobody knows them."""
    kinds: list[str] = [seen.state.kind for seen in snapshot.seen.values() if seen.state.held]
    held = {f'{{kind="{kind}"}}': kinds.count(kind) for kind in KINDS["locks"]}
    metrics: list[tuple[str, str, object]] = [
        ("pyredisson_dashboard_server_up", "Whether a Redis server replies.", int(snapshot.round_trip is not None)),
        ("pyredisson_dashboard_lost_holds_total", "Losses announced since the dashboard began.", snapshot.lost),
        ("pyredisson_dashboard_round_trip_seconds", "A PING; of several servers the slowest.", snapshot.round_trip),
        ("pyredisson_dashboard_held_locks", "Locks that are held.", held),
        ("pyredisson_dashboard_waiters", "Places in queues, and clients that wait for a release.", snapshot.waiting),
        ("pyredisson_dashboard_clients", "Clients that announce themselves, hold or wait.", len(client_rows(snapshot))),
        ("pyredisson_dashboard_deadlocks", "Groups of owners that wait for each other.", len(snapshot.deadlocks)),
        ("pyredisson_dashboard_complete", "Whether all keys were looked at.", int(snapshot.complete)),
    ]
    text = ""
    for name, meaning, value in metrics if snapshot.round_trip is not None else metrics[:2]:
        type_ = "counter" if name.endswith("_total") else "gauge"
        samples = value if isinstance(value, dict) else {"": value}
        text += f"# HELP {name} {meaning}\n# TYPE {name} {type_}\n"
        text += "".join(f"{name}{labels} {sample}\n" for labels, sample in samples.items())
    return text
