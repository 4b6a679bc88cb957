"""Owners in a Java process with Redisson, driven by threads of this one, which write their journal."""

import threading
import traceback
from pathlib import Path
from random import Random

from tests.interop.jvm import VERSIONS, JavaError, Jvm, now
from tests.interop.targets import Target

from .load import LEASE
from .owners import Journal, Wanted

KINDS = {"lock": "Lock", "fair": "FairLock", "fenced": "FencedLock", "read": "ReadLock", "write": "WriteLock"}


class JavaOwners:
    """A hold in Java has no `lost`. It is recorded if its release says that it was one."""

    def __init__(self, target: Target, journal: Path, wanted: list[Wanted], seed: str) -> None:
        self._journal = Journal(str(journal))
        self._wanted = [(kind, names[0]) for kind, names in wanted if kind in KINDS]
        self._stop = threading.Event()
        self._jvm = Jvm(VERSIONS[0])
        self._client = self._jvm.connect(target.yaml(lockWatchdogTimeout=round(LEASE * 1000)))
        self._threads = [threading.Thread(target=self._live, args=(f"java/{seed}/{i}",)) for i in range(2)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._jvm.close()

    def _live(self, owner: str) -> None:
        thread, choice = self._jvm.thread(), Random(owner)
        while not self._stop.is_set():
            kind, name = choice.choice(self._wanted)
            lock = self._client.get(KINDS[kind], name)
            try:
                got = thread.begin(lock, "tryLock", 500, "MILLISECONDS").answer()
                if got.result:
                    self._stop.wait(choice.uniform(0, 0.02))
                    released = now()
                    thread.call(lock, "unlock")
                    mode = "shared" if kind == "read" else "exclusive"
                    hold = self._journal.begin("hold", owner, kind, name, mode, got.began, got.ended)
                    self._journal.write("still", hold, released)
            except JavaError:
                # It was lost, or the server was away.
                self._stop.wait(0.05)
            except BaseException:
                self._journal.write("error", "java", repr(traceback.format_exc()[-500:]))
                raise
