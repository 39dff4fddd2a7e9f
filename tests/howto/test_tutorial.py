"""`docs/tutorial.md`: its three programs, as they stand, on fewer files. `tests/spark/test_kill.py` kills a stream."""

import runpy
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.howto.pages import ROOT
from tests.spark.conftest import spark

__all__ = ["spark"]

pytestmark = pytest.mark.spark


def programs() -> dict[str, str]:
    """The programs by the names under which the page has them saved."""
    names = ("orders.py", "shop.py", "check.py")
    blocks = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").split("```python\n")[1:]
    return {name: block.split("```")[0] for name, block in zip(names, blocks, strict=True)}


def test_the_stream_goes_on_in_its_next_run_and_the_check_says_equal(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two files, then a third in a new run; without the third the check would say so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in programs().items():
        (tmp_path / name).write_text(text.replace("range(100)", "range(3)"), encoding="utf-8")
    runpy.run_path("orders.py", run_name="__main__")
    third = (tmp_path / "orders" / "02.json").rename(tmp_path / "02.json")
    runpy.run_path("shop.py", run_name="__main__")
    third.rename(tmp_path / "orders" / "02.json")
    try:
        runpy.run_path("check.py", run_name="__main__")
        runpy.run_path("shop.py", run_name="__main__")
        runpy.run_path("check.py", run_name="__main__")
    finally:
        sys.modules.pop("shop", None)
    printed = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("batch")]
    assert printed[::2] == ["DIFFERENT", "EQUAL"]
    assert printed[3].startswith("1500 orders of ")
