"""Of those that are killed beside us: a batch that comes again counts twice for those that do not know its id."""

import signal
from pathlib import Path

import pytest

from benchmarks.contest import Report

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


def test_an_interrupted_run_is_taken_up_from_its_last_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch is killed once: what happened behind the copy is forgotten, and happens again."""
    interrupted_at = [13]

    def life(folder: Path, batch: int) -> int:
        if batch in interrupted_at:
            interrupted_at.clear()
            raise KeyboardInterrupt
        with (folder / "lives").open("a") as lives:
            lives.write(f"{batch} ")
        return -signal.SIGKILL if batch < 15 else 0

    monkeypatch.setenv("STATEBACKEND_BENCH_KILLS", str(tmp_path))
    monkeypatch.setattr(kills, "_life", life)
    monkeypatch.setattr(kills, "CONTESTANTS", {})
    with pytest.raises(KeyboardInterrupt):
        kills.run(Report("kills"), kills=15)
    assert len((tmp_path / "run" / "lives").read_text().split()) == 13
    kills.run(Report("kills"), kills=15)
    assert (tmp_path / "run" / "lives").read_text().split() == [str(batch) for batch in [*range(15), 16]]
    assert len(list((tmp_path / "run" / "rows").iterdir())) == 16
