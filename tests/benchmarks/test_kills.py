"""Of those that are killed beside us: a batch that comes again counts twice for those that do not know its id."""

from pathlib import Path

import pytest

pa = pytest.importorskip("pyarrow")
kills = pytest.importorskip("benchmarks.kills")


class _Rows:
    """As much of a DataFrame as they use."""

    def __init__(self, **columns: list[object]) -> None:
        self._columns = columns

    def toArrow(self) -> object:  # noqa: N802
        return pa.table(self._columns)


@pytest.mark.parametrize("name", [name for name in kills.CONTESTANTS if name != kills.OURS])
def test_a_batch_that_comes_again(tmp_path: Path, name: str) -> None:
    """Ours is left out: it needs a real stream, and real kills, which its own tests have."""
    if name in {kills.MERGE, kills.MERGE_WITH_ID}:
        pytest.importorskip("deltalake")
    open_, counted = kills.CONTESTANTS[name]
    write = open_(tmp_path)
    if name == kills.NATIVE:  # totals so far, from Spark's state
        first, second = _Rows(key=["a", "b"], n=[2, 1]), _Rows(key=["a"], n=[4])
    else:
        first, second = _Rows(key=["a", "b", "a"]), _Rows(key=["a", "a"])
    write(first, 0)
    write(second, 1)
    assert counted(tmp_path) == 5
    write(second, 1)
    assert counted(tmp_path) == (7 if name in kills.TWICE else 5)
