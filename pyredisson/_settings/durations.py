"""Checks durations, and converts them: to seconds for the client, to milliseconds for the server."""

import math
from datetime import timedelta

Duration = float | timedelta
MAX_LEASE_MS = 2**52


def seconds(value: Duration, name: str, *, minimum: float = 0.0, allow_inf: bool = False) -> float:
    """The duration `value` in seconds, as a float.

    `name` is the argument's name, for the message. TypeError: it is neither a number nor a timedelta (a bool isn't a
    number here). ValueError: it is NaN, below `minimum`, or infinite without `allow_inf`.
    """
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            result = float(value)
        except OverflowError:  # an int that is larger than any float
            result = math.inf if value > 0 else -math.inf
    else:
        raise TypeError(f"{name} must be seconds (int or float) or a timedelta, not {type(value).__name__}")
    if math.isnan(result):
        raise ValueError(f"{name} must be a number of seconds, not NaN")
    if result < minimum:
        raise ValueError(f"{name} must be at least {minimum:g} s, not {result:g} s")
    if math.isinf(result) and not allow_inf:
        raise ValueError(f"{name} must be finite")
    return result


def lease_ms(value: Duration, name: str = "lease_time") -> int:
    """The lease `value` (seconds or a timedelta) in whole milliseconds, the server's unit; halves are rounded up.

    A local deadline must be computed from the result, not from `value`: where it was rounded down, the owner would
    believe to hold the lock for longer than the server does. ValueError: below 1 ms, or above 2**52 ms (142,000
    years). Scripts compute with doubles, so the server's time plus the lease must be below 2**53 to be exact; PEXPIRE
    itself refuses only values near 2**63. TypeError as for `seconds`.
    """
    duration = seconds(value, name)
    if duration * 1000 < 1:
        raise ValueError(f"{name} must be at least 1 ms (0.001 s)")
    if duration > MAX_LEASE_MS / 1000:
        raise ValueError(f"{name} is longer than the server can hold ({MAX_LEASE_MS // 1000} s)")
    # Separately, so that no product is rounded: a double just represents the seconds of the longest lease to the ms.
    whole = math.floor(duration)
    return whole * 1000 + math.floor((duration - whole) * 1000 + 0.5)
