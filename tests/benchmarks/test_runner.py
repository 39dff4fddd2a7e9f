"""The runner of the benchmarks: what it lists, what it keeps of a run, and when a comparison fails."""

import importlib
import inspect
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks.__main__ import main
from benchmarks.catalogue import CATALOGUE, is_part
from benchmarks.contest import Line, Report, ratio


def _result(ratio_of_two: float, milliseconds: float, *, at_least: bool = False) -> results.Result:
    report = Report("made_up")
    report.add(Line("ours over theirs", "1x", ratio_of_two, "x", 1.0, at_least=at_least))
    report.add(Line("a batch", "10 ms", milliseconds, "ms", 10.0))
    return results.result_of(report, begun="2026-11-22T12:00:00+00:00", seconds=1.0, quick=True, sizes={})


def test_every_round_is_kept(tmp_path: Path) -> None:
    """Written and read again: the sizes, and the figures of each contestant in the order of the rounds."""
    report, turns = Report("made_up"), list[str]()

    def contestant(name: str, figure: float) -> float:
        turns.append(name)
        return figure + len(turns)

    samples = report.contest(
        "a batch",
        "ms",
        {name: lambda name=name, figure=figure: contestant(name, figure) for name, figure in (("a", 100), ("b", 200))},  # type: ignore[misc]
        rounds=2,
        keys=7,
    )
    report.add(Line("a over b", "1x", ratio(samples["a"], samples["b"]).median, "x", 1.0))
    assert turns == ["a", "b", "b", "a"], "the order rotates"
    path = results.save(results.result_of(report, begun="now", seconds=1.0, quick=False, sizes={"keys": 7}), tmp_path)
    (read,) = results.load(path)
    assert read.measured[0].rounds == {"a": [101.0, 104.0], "b": [202.0, 203.0]}
    assert read.measured[0].at == {"keys": 7}
    assert read.lines[0].verdict == "kept"
    assert {"cores", "memory", "processor", "system"} == set(read.machine)
    assert "msgspec" in read.versions


@pytest.mark.parametrize(
    ("is_lower_better", "ratios", "worse"),
    [(True, (1.0, 2.0), True), (False, (1.0, 2.0), False), (False, (2.0, 1.0), True), (True, (1.0, 1.2), False)],
)
def test_a_ratio_that_became_worse_fails_the_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_lower_better: bool, ratios: tuple[float, float], worse: bool
) -> None:
    """In the direction of the claim, and beyond the threshold. A time of another day is shown, and decides nothing."""
    before = results.save(_result(ratios[0], 1.0, at_least=not is_lower_better), tmp_path / "old")
    after = results.save(_result(ratios[1], 100.0, at_least=not is_lower_better), tmp_path / "new")
    if worse:
        with pytest.raises(SystemExit, match="1"):
            main(["compare", str(before), str(after)])
    else:
        main(["compare", str(before.parent), str(after.parent)])
    printed = capsys.readouterr().out
    assert f"2 claims, {int(worse)} worse" in printed
    assert "not compared a batch" in printed


def test_what_has_nothing_in_common_is_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error, not a success with nothing in it."""
    path = results.save(_result(1.0, 1.0), tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(SystemExit, match="2"):
        main(["compare", str(path), str(other)])
    assert "no claim in common" in capsys.readouterr().err


def test_the_list_names_each_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those whose extras are not installed here."""
    main(["list"])
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == list(CATALOGUE)
    assert all(len(line) > 40 for line in printed)


@pytest.mark.parametrize("name", CATALOGUE)
def test_a_quick_run_gives_sizes_that_its_parts_know(name: str) -> None:
    """A part that is gone, or a size that it no longer has, would be found only by running it."""
    assert CATALOGUE[name].quick
    for part, sizes in CATALOGUE[name].quick:
        assert is_part(part)
        module = importlib.import_module(f"benchmarks.{part}")
        assert set(sizes) <= set(inspect.signature(module.run).parameters)


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With the names that there are."""
    with pytest.raises(SystemExit, match="2"):
        main(["stat"])
    assert "checkpoint, recovery" in capsys.readouterr().err
