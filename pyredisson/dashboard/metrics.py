"""A snapshot as metrics for Prometheus, in its text format."""

from collections.abc import Iterator, Mapping

from pyredisson.dashboard.snapshot import Snapshot
from pyredisson.dashboard.views import KINDS, client_rows

METRICS_TYPE = "text/plain; version=0.0.4"
Samples = Mapping[str, float]
"""For each set of labels, as it is written, the value."""


def metrics_of(snapshot: Snapshot) -> str:
    """All metrics. While no server replies, the ones of what it holds are left out: nobody knows them."""
    return "".join(
        f"# HELP {name} {text}\n# TYPE {name} {type_}\n"
        + "".join(f"{name}{labels} {value}\n" for labels, value in samples.items())
        for name, type_, text, samples in _metrics(snapshot)
    )


def _metrics(snapshot: Snapshot) -> Iterator[tuple[str, str, str, Samples]]:
    """The name, the type, the meaning and the samples of each."""
    round_trip, lost, clients = snapshot.round_trip, {"": snapshot.lost}, {"": len(client_rows(snapshot))}
    replies = {"": int(round_trip is not None)}
    yield "pyredisson_dashboard_server_up", "gauge", "Whether a Redis server replies.", replies
    yield "pyredisson_dashboard_lost_holds_total", "counter", "Losses announced since the dashboard began.", lost
    if round_trip is None:
        return
    slowest, waiting = {"": round_trip}, {"": snapshot.waiting}
    deadlocks, complete = {"": len(snapshot.deadlocks)}, {"": int(snapshot.complete)}
    kinds: list[str] = [seen.state.kind for seen in snapshot.seen.values() if seen.state.held]
    held = {f'{{kind="{kind}"}}': kinds.count(kind) for kind in KINDS["locks"]}
    yield "pyredisson_dashboard_round_trip_seconds", "gauge", "A PING; of several servers the slowest.", slowest
    yield "pyredisson_dashboard_held_locks", "gauge", "Locks that are held.", held
    yield "pyredisson_dashboard_waiters", "gauge", "Places in queues, and clients that wait for a release.", waiting
    yield "pyredisson_dashboard_clients", "gauge", "Clients that announce themselves, hold or wait.", clients
    yield "pyredisson_dashboard_deadlocks", "gauge", "Groups of owners that wait for each other.", deadlocks
    yield "pyredisson_dashboard_complete", "gauge", "Whether all keys were looked at.", complete
