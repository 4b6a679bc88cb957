"""Python in a checkout finds the source folder before the installed package: the error says what to do."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "pyredisson"


def test_a_folder_without_the_compiled_core(tmp_path: Path) -> None:
    shutil.copytree(SOURCES, tmp_path / "pyredisson", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    tried = subprocess.run(
        # Without site-packages: in an editable installation the core would be found there.
        [sys.executable, "-E", "-S", "-c", "import pyredisson"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert tried.returncode == 1
    last = tried.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: pyredisson is imported from")
    assert str(tmp_path) in last
    for way_out in ("make venv", "pip install -e .", "another directory"):
        assert way_out in last
    assert "No module named 'pyredisson._core'" in tried.stderr
