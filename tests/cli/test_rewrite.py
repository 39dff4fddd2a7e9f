"""`rewrite`: its output, its progress, and its exit status."""

import io
import json
import re

import anyio
import pytest

import statebackend as sb
from statebackend import cli
from statebackend.cli.progress_bar import shown, size
from tests.cli.conftest import Place


def test_it_says_what_it_has_done(place: Place) -> None:
    """And the number to open the job with from now on; a second run has nothing to do."""
    status, printed = place.run("rewrite", "--max-parallelism", "7")
    assert status == cli.OK
    assert "checkpoint 13 has 128 key groups, 1 keys in 1 states" in printed
    assert "checkpoint 14 has 7" in printed
    assert "max_parallelism=7" in printed
    status, printed = place.run("rewrite", "--max-parallelism", "7")
    assert (status, "nothing to do" in printed) == (cli.OK, True)


def test_it_says_it_to_programs_too(place: Place) -> None:
    """The same, as JSON, and nothing else on stdout."""
    status, printed = place.run("rewrite", "--max-parallelism", "7", "--json")
    found = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    assert status == cli.OK
    assert (found["read_id"], found["checkpoint_id"], found["max_parallelism"]) == (13, 14, 7)
    assert found["keys"] == {"legs": 1}


def test_a_dry_run_changes_nothing(place: Place) -> None:
    """Not even a claim."""
    before = {path: path.read_bytes() for path in place.job.rglob("*") if path.is_file()}
    status, printed = place.run("rewrite", "--max-parallelism", "7", "--dry-run")
    assert (status, "nothing was written" in printed) == (cli.OK, True)
    assert {path: path.read_bytes() for path in place.job.rglob("*") if path.is_file()} == before


def test_a_savepoint_is_rewritten_by_name(place: Place) -> None:
    """The job continues from it."""
    assert place.run("rewrite", "--max-parallelism", "7", "--savepoint", "before-migration")[0] == cli.OK
    rows = [json.loads(line) for line in place.run("dump")[1].splitlines() if line.startswith("{")]
    assert [row["value"] for row in rows] == [0]


@pytest.mark.parametrize("number", ["0", "32769", "-1"])
def test_a_number_out_of_bounds_is_told(place: Place, number: str) -> None:
    """Before the first request to the store."""
    status, printed = place.run("rewrite", "--max-parallelism", number)
    assert (status, "max_parallelism must be 1 to 32768" in printed) == (cli.WRONG_CALL, True)


def test_the_number_has_to_be_said(place: Place) -> None:
    """The default would rarely be meant."""
    with pytest.raises(SystemExit) as caught:
        place.run("rewrite")
    assert caught.value.code == cli.WRONG_CALL


def test_damage_stops_it(place: Place) -> None:
    """No damage is carried over, and the job is unchanged."""
    segment = place.segments()[0]
    content = bytearray(segment.read_bytes())
    content[40] ^= 1
    segment.write_bytes(content)
    status, _ = place.run("rewrite", "--max-parallelism", "7", local=False)
    assert status == cli.NOT_UNDERSTOOD
    status, _ = place.run("rewrite", "--max-parallelism", "7")  # the local copy is whole
    assert status == cli.OK

    async def read() -> int:
        settings = sb.Settings(job="fleet", primary=place.settings.primary, max_parallelism=7)
        async with sb.open_backend(settings, read_only=True) as backend:
            return backend.value_state("legs", int)["k"]

    assert anyio.run(read) == 3


@pytest.mark.parametrize("command", ["rewrite", "dump", "report"])
def test_no_such_job_is_told(place: Place, command: str) -> None:
    """A mistyped name creates no job."""
    options = ("--max-parallelism", "7") if command == "rewrite" else ()
    status, printed = place.run(command, *options, job="flet")
    assert status == cli.WRONG_CALL
    assert "flet" in printed
    assert not (place.directory / "primary" / "flet").exists()


STEPS = [
    sb.reports.Progress("reading", share, round(share * 1000), round(share * 4096)) for share in (0.05, 0.5, 0.55, 1.0)
]
STEPS += [sb.reports.Progress("writing", 1.0, 1000, 5 << 20)]


def test_a_log_gets_a_line_for_each_tenth() -> None:
    """No more than that, however many files there are."""
    stream = io.StringIO()
    with shown(lines=True, instead=stream) as tell:
        for step in STEPS:
            tell(step)
    assert stream.getvalue().splitlines() == [
        "reading   5%  50 changes, 205 B",
        "reading  50%  500 changes, 2.0 KiB",
        "reading 100%  1,000 changes, 4.0 KiB",
        "writing 100%  1,000 changes, 5.0 MiB",
    ]


def test_what_a_timer_starts_is_silent() -> None:
    """What a nightly command writes to stderr is sent to somebody as mail."""
    stream = io.StringIO()
    with shown(instead=stream) as tell:
        for step in STEPS:
            tell(step)
    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_person_gets_a_bar_for_each_phase() -> None:
    """It ends full, with the numbers beside it."""
    pytest.importorskip("rich", reason="the extra cli")
    stream = Terminal()
    with shown(instead=stream) as tell:
        for step in STEPS:
            tell(step)
    drawn = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    last = drawn.splitlines()[-2:]
    assert [line.split()[0] for line in last] == ["reading", "writing"]
    assert all("100%" in line for line in last)
    assert "5.0 MiB" in last[1]


def test_bytes_are_rounded_for_people() -> None:
    """To one decimal, in the largest fitting unit."""
    assert [size(count) for count in (0, 1023, 1024, 3 << 19, 5 << 30, 5 << 40)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 MiB",
        "5.0 GiB",
        "5120.0 GiB",
    ]
