"""How fast everything is: what was expected, what came out, and where we lost.

    nox -s bench                        all that need nothing else; `-- all` for the rest, too
    nox -s bench -- all --quick         every benchmark in fifteen minutes, with fewer keys and rounds
    nox -s bench -- spark upserts       these, or parts of them: state.access
    nox -s bench -- list                what there is, and how long each takes
    nox -s bench -- compare OLD NEW     two results files, or two directories of them
    nox -s bench -- page                the performance page, its charts and its history, from the results
    nox -s bench -- history             every claim beside what it was in earlier runs, as tables

A run writes each result to `benchmarks/results`, and to the history there; a quick one writes to `build/benchmarks`, a
trial with `--sizes` nowhere. It ends with a line for each benchmark, and with status 1 if one could not be run.
"""

import argparse
import importlib
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks import history, results
from benchmarks.catalogue import CATALOGUE, benchmark_of, is_part, steps_of
from benchmarks.contest import Report

EVERYTHING: Final = "all"
WORSE: Final = 1.25
"""A ratio may be this much worse than it was before `compare` fails: what rounds of one run differ by here."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; without one, run benchmarks. A missed expectation is a result, not an error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    commands = {"list": _list, "compare": _compare, "page": _page, "history": _history}
    command = commands.get(given[0], _run) if given else _run
    command(given[1:] if command is not _run else given)


def _run(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", type=_named, help=f"any of: {', '.join(CATALOGUE)}; or a part of one")
    parser.add_argument("--quick", action="store_true", help="fewer keys and rounds: fifteen minutes for `all`")
    parser.add_argument("--sizes", type=_sizes, default={}, help="of a benchmark that has any: keys=1000,rounds=2")
    parser.add_argument("--results", type=Path, help="a directory for the figures; benchmarks/results by default")
    given = parser.parse_args(arguments)
    usual = results.QUICK if given.quick else results.DIRECTORY
    directory = given.results or (None if given.sizes else usual)
    names = given.names or [name for name, each in CATALOGUE.items() if not each.extras]
    names = list(CATALOGUE) if EVERYTHING in names else names
    pace, told, failed = Pace(names, quick=given.quick), list[str](), 0
    for number, name in enumerate(names, 1):
        print(f"{name} ({number} of {len(names)}), {pace.ahead()}:", flush=True)
        report, begun_s = Report(name), time.monotonic()
        try:
            _measure(report, given.sizes, quick=given.quick, directory=directory)
        except Exception:  # noqa: BLE001  # the others can still be measured
            failed += 1
            traceback.print_exc()
            outcome = "FAILED, see above"
        else:
            outcome = report.summary
        pace.one_done()
        told.append(f"{name:<14}{time.monotonic() - begun_s:>6.0f} s  {outcome}")
    print("\n".join(["", *told, f"{pace.taken_s / 60:.1f} min in all, {failed} of {len(names)} failed"]))
    if failed:
        raise SystemExit(1)


def _measure(report: Report, sizes: dict[str, int], *, quick: bool, directory: Path | None) -> None:
    begun, begun_s = datetime.now(UTC), time.monotonic()
    if missing := benchmark_of(report.title).missing:
        report.skip(f"{report.title} needs {', '.join(missing)}; `nox -s bench -- {report.title}` installs it")
        return
    for part, own in steps_of(report.title, quick=quick):
        importlib.import_module(f"benchmarks.{part}").run(report, **{**own, **sizes})
    seconds = time.monotonic() - begun_s
    if directory is not None and report.lines:
        at = begun.isoformat(timespec="seconds")
        result = results.result_of(report, begun=at, seconds=seconds, quick=quick, sizes=sizes)
        path = results.save(result, directory)
        if directory == results.DIRECTORY:
            history.append(result, directory / history.FILE.name)
        print(f"  {len(report.lines)} lines in {seconds:.0f} s, written to {path}", flush=True)


class Pace:
    """How long a run will still take: by the catalogue, and by how this machine has kept to it so far.

    A part of a benchmark takes no longer than the whole.
    """

    def __init__(self, names: Sequence[str], *, quick: bool) -> None:
        self._about = "about" if set(names) <= set(CATALOGUE) else "at most"
        self._expected_s = [benchmark_of(name).seconds(quick=quick) for name in names]
        self._begun_s = time.monotonic()
        self._done = 0

    @property
    def taken_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begun_s

    def ahead(self) -> str:
        """What the next one takes, and all that are left."""
        known_s = sum(self._expected_s[: self._done])
        slower = self.taken_s / known_s if known_s else 1.0
        next_s, left_s = (slower * sum(self._expected_s[self._done : end]) for end in (self._done + 1, None))
        return f"{self._about} {next_s / 60:.1f} min, {left_s / 60:.1f} min left in all"

    def one_done(self) -> None:
        """Go on to the next."""
        self._done += 1


def _list(arguments: Sequence[str]) -> None:
    argparse.ArgumentParser(prog="python -m benchmarks list", description="What there is.").parse_args(arguments)
    for each in CATALOGUE.values():
        minutes = f"{each.minutes:>5g} min, quick {each.quick_s / 60:>4.1f} min"
        print(f"{each.name:<14}{minutes}  {'named only  ' if each.extras else ' ' * 12}{each.about}")


def _compare(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks compare",
        description="Compare two results. Exits with 1 if a ratio has become worse by more than the threshold.",
    )
    parser.add_argument("old", type=Path, help="a results file, or a directory of them")
    parser.add_argument("new", type=Path)
    parser.add_argument("--threshold", type=float, default=WORSE, help=f"{WORSE:g} by default")
    given = parser.parse_args(arguments)
    changes = list(results.compare(results.load(given.old), results.load(given.new)))
    if not changes:
        parser.error("the two have no claim in common")
    worse = [change for change in changes if change.is_comparable and change.factor > given.threshold]
    for change in changes:
        verdict = "worse" if change in worse else "as before" if change.is_comparable else "not compared"
        print(f"{verdict:<13}{change.claim}: {change.old:.3g} -> {change.new:.3g} {change.unit}")
    print(f"{len(changes)} claims, {len(worse)} worse by more than {given.threshold:g}x")
    if worse:
        raise SystemExit(1)


def _page(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks page", description="Make the performance page.")
    parser.add_argument("--results", type=Path, default=results.DIRECTORY)
    given = parser.parse_args(arguments)
    history.PAGE.write_text(history.page(history.load(history.FILE)), encoding="utf-8")
    print(history.PAGE)
    performance: Any = importlib.import_module("benchmarks.performance")  # needs matplotlib
    for path in performance.make(results.load(given.results)):
        print(path)


def _history(_arguments: Sequence[str]) -> None:
    print(history.tables(history.load(history.FILE)))


def _named(name: str) -> str:
    if name != EVERYTHING and not is_part(name):
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(CATALOGUE)}, nor a part of one")
    return name


def _sizes(text: str) -> dict[str, int]:
    return {name: int(number) for name, _, number in (part.partition("=") for part in text.split(","))}


if __name__ == "__main__":
    main()
