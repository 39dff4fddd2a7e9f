"""The script of CI: all sessions run whatever fails, and its last lines tell what failed and what was not checked."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tidy.test_words import ROOT

NOX = """#!/bin/sh
echo "$2" >> "$ASKED"
case "$2" in
    explore) echo "nox > NOT CHECKED by Spin: no apt-get" >&2 ;;
    "$FAILS") exit 1 ;;
    tests) echo "==== 7 passed, 1 skipped in 3.00s ====" ;;
esac
"""


@pytest.mark.parametrize(("fails", "status"), [("", 0), ("docs", 1)])
def test_the_end_tells_what_failed_and_what_was_not_checked(tmp_path: Path, fails: str, status: int) -> None:
    """By a nox that does nothing, and a Python that has no venv to make."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"nox": NOX, "python": "#!/bin/sh\n"}.items():
        (programs / name).write_text(text, encoding="ascii")
        (programs / name).chmod(0o755)
    variables = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHON": "false", "FAILS": fails, "ASKED": "asked"}
    done = subprocess.run(
        ("bash", ".ci/run"), cwd=tmp_path, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert (tmp_path / "asked").read_text().split() == ["lint", "types", "layers", "api", "docs", "explore", "tests"]
    assert done.stdout.splitlines()[-3:] == [
        "nox > NOT CHECKED by Spin: no apt-get",
        f"sessions that failed: {fails or 'none'}",
        "==== 7 passed, 1 skipped in 3.00s ====",
    ]
