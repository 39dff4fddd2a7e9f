"""The runner of the benchmarks: what it lists, what it keeps of a run, and when a comparison fails."""

import importlib
import importlib.machinery
import inspect
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import __main__ as runner
from benchmarks import history, results
from benchmarks.__main__ import main
from benchmarks.catalogue import CATALOGUE, Benchmark, is_part, steps_of
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


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call it to put another benchmark into an empty catalogue."""
    monkeypatch.setattr(runner, "CATALOGUE", catalogue := dict[str, Benchmark]())
    monkeypatch.setattr(sys.modules["benchmarks.catalogue"], "CATALOGUE", catalogue)

    def put(name: str, run: Callable[[Report], None], *needs: str) -> None:
        module = types.ModuleType(f"benchmarks.{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        module.run = run  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        catalogue[name] = Benchmark(name, 1, 30, [(name, {})], needs=needs)

    return put


def test_a_run_ends_with_a_line_for_each(
    add: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that fails leaves the others alone and decides the status; what is not here is said, and is no failure."""

    def measure(report: Report) -> None:
        report.add(Line("ours over theirs", "at most 1x", 2.0, "x", 1.0))

    def fail(report: Report) -> None:
        raise ValueError("a wrong total")

    add("broken", fail)
    add("slow", measure)
    add("far", measure, "a_package_that_nobody_has")
    with pytest.raises(SystemExit, match="1"):
        main(["all", "--quick", "--results", str(tmp_path)])
    printed = capsys.readouterr()
    assert "ValueError: a wrong total" in printed.err
    assert re.findall(r"^(\w+) +\d+ s  (.*)$", printed.out, re.MULTILINE) == [
        ("broken", "FAILED, see above"),
        ("slow", "1 of 1 expectations missed"),
        ("far", "NOT MEASURED: far needs a_package_that_nobody_has; `nox -s bench -- far` installs it"),
    ]
    assert "1 of 3 failed" in printed.out
    assert "broken (1 of 3), about 0.5 min, 1.5 min left in all:" in printed.out
    last = re.search(r"^far \(3 of 3\), about (\S+) min, (\S+) min left", printed.out, re.MULTILINE)
    assert last is not None
    assert last[1] == last[2], "the last one is all that is left"


def test_a_quick_run_leaves_the_results_of_the_page_alone(
    add: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quick figure is none for the page."""
    monkeypatch.setattr(results, "DIRECTORY", tmp_path / "page")
    monkeypatch.setattr(results, "QUICK", tmp_path / "quick")
    add("fast", lambda report: report.add(Line("ours over theirs", "at most 1x", 0.5, "x", 1.0)))
    main(["fast", "--quick"])
    assert [path.name for path in tmp_path.rglob("*")] == ["quick", "fast.json"]
    main(["fast"])
    assert (tmp_path / "page" / "fast.json").is_file()
    main(["fast"])
    kept = history.load(tmp_path / "page" / history.FILE.name)
    assert [(entry.claim, entry.measured) for entry in kept] == 2 * [("ours over theirs", 0.5)]


def test_a_quick_run_of_a_part_has_the_sizes_of_the_whole() -> None:
    """And a part of which the quick form knows nothing is run as it is."""
    (part,) = steps_of("spark.parallel", quick=True)
    assert part in CATALOGUE["spark"].quick
    assert steps_of("state.access", quick=True) == [("state.access", {})]
    assert steps_of("spark.parallel", quick=False) == [("spark.parallel", {})]


def test_a_quick_run_of_everything_takes_a_quarter_of_an_hour() -> None:
    """By the estimates for two quiet cores, with two minutes for the environment that a clean clone has to make."""
    assert sum(each.quick_s for each in CATALOGUE.values()) <= 13 * 60
