# Leader election: of all processes that run this program one works, and when it ends another one takes over.
# In several terminals: python leader.py NAME; end the leader by Ctrl-C or by kill.
# PYREDISSON_URL names the Redis.

import contextlib
import os
import sys

import pyredisson

URL = os.environ.get("PYREDISSON_URL", "redis://localhost:6379/0")


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else f"process {os.getpid()}"
    # On SIGTERM the leader resigns. Otherwise the others would wait until its lease ends.
    pyredisson.release_on_signals()

    def work(term) -> None:
        print(f"{name} leads, with token {term.token}", flush=True)
        # What it writes to a database carries the token, so that the database refuses a leader of the past.
        while term.valid:
            term.lost.wait(1.0)
        print(f"{name} was deposed", flush=True)

    with pyredisson.connect(URL) as client:
        print(f"{name} is a candidate", flush=True)
        client.elect("example:billing").run(work)


with contextlib.suppress(KeyboardInterrupt):
    main()
