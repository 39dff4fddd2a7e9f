"""`docs/explanation/internals.md`: its program is killed, and what it says is there is there."""

import doctest
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.howto.pages import ROOT, code_of

PAGE = ROOT / "docs" / "explanation" / "internals.md"


def test_all_that_the_tour_shows_is_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program in a process of its own, which dies; then the page's lines, one after the other, in this one."""
    text = PAGE.read_text(encoding="utf-8")
    (tmp_path / "tour.py").write_text(code_of(text).strip("\n"), encoding="utf-8")
    killed = subprocess.run([sys.executable, "tour.py"], cwd=tmp_path, check=False)
    assert killed.returncode == -signal.SIGKILL
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    typed = doctest.DocTestParser().get_doctest(code_of(text, "pycon"), {}, PAGE.name, str(PAGE), 0)
    assert typed.examples
    printed: list[str] = []
    try:
        failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(typed, out=printed.append).failed
    finally:
        sys.modules.pop("tour", None)
    assert not failed, "".join(printed)
