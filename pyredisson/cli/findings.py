"""What `doctor` finds, and the checks that read one server's own reports."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from pyredisson._protocol.topology import SLOTS, TopologyView

MEBIBYTE = 1 << 20
FULL = 0.9
"""The part of the memory limit above which there is a warning."""
LONGEST_LAG = 10
"""Seconds that a replica may be behind."""


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    """Locks work, but something is missing when a server fails, or soon."""
    ERROR = "error"
    """Locks don't work, or may be granted twice."""


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    level: Level
    text: str
    advice: str = ""
    server: str = ""
    """The address, if the finding is about one server."""


def fields_of(info: bytes) -> dict[str, str]:
    """The reply of INFO, or of CLUSTER INFO."""
    lines = info.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))


def version(info: Mapping[str, str]) -> Iterator[Finding]:
    name = "Valkey" if "valkey_version" in info else "Redis"
    number = info.get("valkey_version") or info.get("redis_version", "of unknown version")
    if int(info.get("redis_version", "7").partition(".")[0]) < 7:
        text = f"{name} {number} has no script flags: a release fails while the server is out of memory"
        yield Finding("version", Level.NOTE, text, "upgrade to Redis 7.0 or Valkey 8, or later")
    else:
        yield Finding("version", Level.OK, f"{name} {number}")


def memory(info: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the server may remove locks, or refuse them soon."""
    policy = info.get("maxmemory_policy", "")
    # A proxy may leave out fields.
    limit, used = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0))
    if not limit:
        yield Finding("eviction", Level.OK, "no memory limit, so no key is evicted")
        return
    if policy == "noeviction":
        yield Finding("eviction", Level.OK, "maxmemory-policy is noeviction: no lock is evicted")
    else:
        text = f"maxmemory-policy is {policy}: the server may remove locks that are held"
        yield Finding("eviction", Level.ERROR, text, "CONFIG SET maxmemory-policy noeviction, then CONFIG REWRITE")
    if used > FULL * limit:
        text = f"{used // MEBIBYTE} of {limit // MEBIBYTE} MiB of memory are used: soon nothing can be acquired"
        yield Finding("memory", Level.WARNING, text, "raise maxmemory, or find what grows with redis-cli --bigkeys")


def persistence(info: Mapping[str, str]) -> Iterator[Finding]:
    """What a restart forgets."""
    if info.get("aof_enabled") == "1":
        yield Finding("persistence", Level.OK, "the append-only file is on")
    else:
        text = "the append-only file is off: after a restart the latest locks are free, and their holders find out late"
        yield Finding("persistence", Level.NOTE, text, "CONFIG SET appendonly yes, or use fencing tokens")


def replication(info: Mapping[str, str], *, expects_replicas: bool) -> Iterator[Finding]:
    """Whether a failover keeps the locks, and a master that is cut off stops."""
    count = int(info.get("connected_slaves", 0))
    if not count:
        if expects_replicas:
            text = "no replica: nothing takes over if this server fails"
            yield Finding("replication", Level.WARNING, text, "add a replica")
        return
    if "min_slaves_good_slaves" not in info:
        text = "min-replicas-to-write is 0: a master that is cut off goes on granting locks"
        yield Finding("min-replicas", Level.WARNING, text, "CONFIG SET min-replicas-to-write 1, then CONFIG REWRITE")
    else:
        yield Finding("min-replicas", Level.OK, "a master without replicas grants nothing")
    behind = []
    for number in range(count):
        replica = dict(part.split("=", 1) for part in info.get(f"slave{number}", "").split(",") if "=" in part)
        if replica.get("state") != "online" or int(replica.get("lag", 0)) > LONGEST_LAG:
            behind.append(f"{replica.get('ip')}:{replica.get('port')}")
    if behind:
        text = f"replicas are behind: {', '.join(behind)}"
        yield Finding("replication", Level.WARNING, text, "look at their log and at master_link_status")
    else:
        yield Finding("replication", Level.OK, f"{count} replica{'s' if count > 1 else ''}, none behind")


def cluster(info: Mapping[str, str], server: str = "") -> Iterator[Finding]:
    """Whether a node sees the whole cluster. The reply of CLUSTER INFO."""
    state, assigned = info.get("cluster_state"), info.get("cluster_slots_assigned")
    if state != "ok" or assigned != str(SLOTS):
        text = f"cluster_state is {state}, {assigned} of {SLOTS} slots served"
        yield Finding("cluster", Level.ERROR, text, "redis-cli --cluster check HOST:PORT", server)


def slot_maps(views: Mapping[str, TopologyView]) -> Iterator[Finding]:
    """Whether the masters agree on who serves which slot. `views`: what each of them says, by its address."""
    maps = {address: _masters_of_slots(view) for address, view in views.items()}
    if not maps:
        return
    [(usual, agreeing)] = Counter(maps.values()).most_common(1)
    if agreeing == len(maps):
        yield Finding("slots", Level.OK, "all masters agree on who serves which slot")
        return
    reference = next(address for address, each in maps.items() if each == usual)
    for address, each in maps.items():
        differing = [slot for slot, masters in enumerate(zip(each, usual, strict=True)) if masters[0] != masters[1]]
        if differing:
            text = f"other masters than at {reference} for {len(differing)} slots, the first of them is {differing[0]}"
            advice = (
                "run it again after slots were moved; if it stays, look whether the nodes reach each other's cluster "
                f"bus: redis-cli --cluster check {address}"
            )
            yield Finding("slots", Level.WARNING, text, advice, address)


def _masters_of_slots(view: TopologyView) -> tuple[bytes, ...]:
    """The id of the master of each slot; empty: it has none."""
    masters = [b""] * SLOTS
    for shard in view.shards:
        for first, last in shard.slots:
            masters[first : last + 1] = [shard.master.id] * (last + 1 - first)
    return tuple(masters)


def buffers(setting: str) -> Iterator[Finding]:
    """Whether a burst of messages ends subscriptions. The setting client-output-buffer-limit."""
    hard_and_soft = setting.partition("pubsub ")[2].split()[:2]
    if any(0 < int(limit) < MEBIBYTE for limit in hard_and_soft):
        limits = " ".join(hard_and_soft)
        text = f"client-output-buffer-limit pubsub is {limits}: a burst of messages ends subscriptions"
        yield Finding("buffers", Level.WARNING, text, "set it to 32mb 8mb 60, the default")
