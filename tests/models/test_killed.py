"""A job whose process is killed again and again; `nox -s models` does it more often."""

from pathlib import Path

import pytest

from tests.models.killing import Killing

LIVES = 12


async def test_nothing_acknowledged_is_lost_and_nothing_is_torn(tmp_path: Path) -> None:
    """Whoever comes next, with other owners and tables, and local copies that are damaged or gone."""
    pytest.importorskip("rocksdict", reason="the extra rocksdb")
    killing = Killing(tmp_path, seed=7)
    killing.run(LIVES)
    await killing.check_whole()
    assert killing.counted["kills"] == LIVES
    assert killing.counted["acknowledged"] > LIVES
