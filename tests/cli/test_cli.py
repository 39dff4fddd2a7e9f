"""The command line: its output for people and for programs, and its exit status."""

import io
import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend import cli
from statebackend._codec.commit import VERSION
from statebackend._log.outbox import Output
from statebackend.cli import commands
from statebackend.errors import StoreFullError
from statebackend.objectstore import memory
from statebackend.testing import Fail, FaultyStore
from tests.cli.conftest import Place
from tests.log.swept import JOB, Job

ROOT = Path(__file__).parents[2]
HEX = "0123456789abcdef" * 2

Run = Callable[..., tuple[int, str, str]]


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def test_inspect_shows_the_log_for_people(place: Place) -> None:
    """Every entry, with its checkpoint, its batch and its savepoint; the states; what lies where."""
    status, printed = place.run("inspect")
    assert status == cli.OK
    assert "job fleet: newest checkpoint 13, epoch 1" in printed
    rows = [line.split() for line in printed.splitlines()]
    assert [row[2] for row in rows if row[1:3] == ["*", "commit"]] == ["commit"] * 4
    assert any("savepoint before-migration" in line and " 10 " in line for line in printed.splitlines())
    assert ["legs", "value", '"int"'] in rows
    assert [row[0] for row in rows if row[-5:] == ["1.00", "times", "the", "mean", "legs"]] == ["1"], "how many keys"
    assert any(row[:2] == ["segments", "4"] for row in rows)


def test_inspect_shows_the_epoch_of_the_last_writer(place: Place) -> None:
    """Also if it has only claimed the job."""

    async def open_again() -> None:
        async with sb.open_backend(place.settings):
            pass

    anyio.run(open_again)
    status, printed = place.run("inspect")
    assert (status, printed.splitlines()[0]) == (cli.OK, "job fleet: newest checkpoint 13, epoch 2")


def test_inspect_shows_the_log_for_programs(place: Place) -> None:
    """The same, as JSON."""
    _, printed = place.run("inspect", "--json")
    found = json.loads(printed)
    assert [row["kind"] for row in found["log"]] == ["claim", *["commit"] * 4]
    assert [row["checkpoint_id"] for row in found["log"]] == [None, 10, 11, 12, 13]
    assert [row["objects"] for row in found["log"]] == [0, 1, 2, 3, 4]
    assert found["log"][1]["savepoints"] == ["before-migration"]
    assert found["places"]["commits"][0] == 5


def test_inspect_shows_the_branch_that_was_left(place: Place) -> None:
    """Only the newest commit and its ancestors have a star."""

    async def roll_back() -> None:
        async with sb.open_backend(place.settings, checkpoint_id=11) as backend:
            await backend.checkpoint(20)

    anyio.run(roll_back)
    found = json.loads(place.run("inspect", "--json")[1])
    assert [row["checkpoint_id"] for row in found["log"] if row["on_branch"]] == [10, 11, 20]
    assert [row["parent"] for row in found["log"] if row["kind"] == "claim"] == [None, 2]


def test_inspect_shows_damage_and_goes_on(place: Place) -> None:
    """One entry cannot be read; the others can."""
    flip(place.job / "commits" / f"{2:012d}", 40)
    status, printed = place.run("inspect")
    assert status == cli.OK
    (line,) = [line for line in printed.splitlines() if "damaged" in line]
    assert "checksum" in line
    assert "newest checkpoint 13" in printed


def test_verify_reads_both_copies(place: Place) -> None:
    """It counts the objects and bytes of each."""
    status, printed = place.run("verify", "--json")
    found = json.loads(printed)
    sizes = sum(path.stat().st_size for path in place.segments())
    assert status == cli.OK
    assert found["objects"] == {"primary": 4, "local": 4}
    assert found["size_bytes"] == {"primary": sizes, "local": sizes}
    assert found["checkpoints"] == [10, 11, 12, 13]  # three, and the savepoint
    assert found["damages"] == []


@pytest.mark.parametrize("copy", ["primary", "local"])
def test_verify_names_the_object_and_the_offset_of_each_damage(place: Place, copy: str) -> None:
    """At every byte of a segment, in either copy."""
    root = place.job if copy == "primary" else place.directory / "local" / "job_fleet" / "taskowned"
    path = sorted((root / "segments").iterdir())[1]
    for offset in range(0, path.stat().st_size, 7):
        flip(path, offset)
        status, printed = place.run("verify")
        assert status == cli.DAMAGE
        (line,) = [line for line in printed.splitlines() if line.startswith("damaged")]
        assert f"{copy} segments/{path.name} at offset " in line
        assert "needed by checkpoints 11, 12, 13" in line
        flip(path, offset)
    assert place.run("verify")[0] == cli.OK


async def test_verify_tells_how_far_it_is(place: Place) -> None:
    """Over both copies together, with staged output, up to a share of 1."""
    told: list[sb.reports.Progress] = []
    await sb.verify(place.settings, tell=told.append)
    sizes = sum(path.stat().st_size for path in place.segments())
    assert [each.phase for each in told] == ["verifying"] * 8
    assert [each.share for each in told] == sorted(each.share for each in told)
    assert (told[-1].share, told[-1].size_bytes, told[-1].changes) == (1.0, 2 * sizes, 8)
    async with sb.open_backend(place.settings) as backend:
        await backend.checkpoint(20, source=sb.SourceMark("q", 4), output=Output(b"schema", 1, (b"rows",)))
    told.clear()
    await sb.verify(place.settings, tell=told.append)
    assert (len(told), told[-1].share) == (9, 1.0)


def test_verify_finds_what_is_gone(place: Place) -> None:
    """A missing object is damage in the primary, but not in the local copy."""
    (place.directory / "local" / "job_fleet" / "taskowned" / "segments" / place.segments()[0].name).unlink()
    status, printed = place.run("verify")
    assert (status, "1 copies are missing" in printed) == (cli.OK, True)
    place.segments()[0].unlink()
    status, printed = place.run("verify")
    assert status == cli.DAMAGE
    assert "it is gone" in printed


def test_verify_finds_a_damaged_commit(place: Place) -> None:
    """It verifies the commits before that one all the same."""
    flip(place.job / "commits" / f"{4:012d}", 40)
    status, printed = place.run("verify")
    assert status == cli.DAMAGE
    assert f"commits/{4:012d}" in printed
    assert "10, 11, 12" in printed


def test_sweep_is_a_dry_run_unless_told_to_delete(place: Place) -> None:
    """Both print the same, and only the second deletes."""
    orphan = place.job / "segments" / f"00000000-00000000-{HEX}"
    orphan.write_bytes(b"left")
    status, dry = place.run("sweep", "--min-age-s", "0")
    assert status == cli.OK
    assert orphan.name in dry
    assert "epoch 0 is over" in dry
    assert orphan.exists()
    status, wet = place.run("sweep", "--min-age-s", "0", "--delete")
    assert status == cli.OK
    assert not orphan.exists()
    assert dry.splitlines()[:-1] == wet.splitlines()[:-1]
    assert len(place.segments()) == 4


NO_ROOM = Fail(operation="put", key="*/swept/*", error=StoreFullError("no room"))


@pytest.mark.parametrize(
    ("fault", "told"),
    [(None, "3 objects deleted"), (NO_ROOM, "stopped: no room"), (Fail(operation="delete", nth=2), "not deleted: ")],
    ids=["all deleted", "stopped", "some not deleted"],
)
def test_a_sweep_that_leaves_garbage_does_not_exit_as_one_that_is_done(
    fault: Fail | None, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever has it run every night sees only the status. A dry run leaves what it finds, and is done."""
    job, command = Job(), ["sweep", "--primary", "memory://faulty", "--job", JOB, "--retain", "1"]
    anyio.run(job.commit, 1, 2, 3)
    monkeypatch.setitem(memory._STORES, "faulty", FaultyStore(job.store, [fault] if fault else []))
    assert cli.main(command) == cli.OK
    assert "dry run" in capsys.readouterr().out
    assert cli.main([*command, "--delete"]) == (cli.DAMAGE if fault else cli.OK)
    assert told in capsys.readouterr().out


def test_sweep_lists_what_stays_if_asked(place: Place) -> None:
    """With the reason for each."""
    assert "points into it" not in place.run("sweep")[1]
    printed = place.run("sweep", "--all")[1]
    assert sum("points into it" in line for line in printed.splitlines()) == 4


def test_a_foreign_object_is_reported_and_stays(place: Place) -> None:
    """It is not an error."""
    (place.job / "notes.txt").write_bytes(b"theirs")
    status, printed = place.run("sweep", "--min-age-s", "0", "--delete")
    assert status == cli.OK
    assert "notes.txt  (not one of our names)" in printed
    assert (place.job / "notes.txt").exists()


def test_a_checkpoint_is_kept_by_a_name(place: Place) -> None:
    """The newest, or another; printed with the batch that follows. A name that is taken keeps what it has."""
    status, printed = place.run("savepoint", "newest")
    assert status == cli.OK
    assert "batch 4 of query q" in printed
    assert place.run("savepoint", "older", "--checkpoint-id", "11")[0] == cli.OK
    assert "older" in place.run("savepoints")[1]
    for name, checkpoint_id, told in (("newest", "11", "drop it"), ("other", "99", "99"), ("a b", "11", "name")):
        status, printed = place.run("savepoint", name, "--checkpoint-id", checkpoint_id)
        assert status == cli.WRONG_CALL
        assert told in printed
    assert place.run("dump", "--savepoint", "newest", "--state", "legs")[1].count('"value":3') == 1


def test_a_savepoint_of_a_series_is_kept_for_a_time(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """The time is in its name."""
    assert "nightly-2" in place.run("savepoint", "nightly", "--keep", "1.5d")[1]
    assert place.run("savepoint", "weekly", "--keep", "0d")[0] == cli.WRONG_CALL
    for time in ("7", "d", "7 days", "xd"):
        with pytest.raises(SystemExit):
            place.run("savepoint", "weekly", "--keep", time)
        assert "7d, 12h" in capsys.readouterr().err


def test_savepoints_are_listed_and_dropped(place: Place) -> None:
    """Dropping it twice is an error."""
    assert "before-migration  10" in place.run("savepoints")[1]
    assert place.run("drop", "before-migration") == (cli.OK, "")
    assert "before-migration" not in place.run("savepoints")[1]
    status, printed = place.run("drop", "before-migration")
    assert status == cli.WRONG_CALL
    assert "before-migration" in printed


def test_a_state_that_was_edited_by_hand_is_shown_with_its_newest_batch(place: Place) -> None:
    """The edit was made for none, but a stream goes on behind it: from the newest checkpoint and from a savepoint."""

    async def edit() -> None:
        async with sb.open_backend(place.settings) as backend:
            backend.value_state("legs", int)["k"] = 0
            await backend.checkpoint(backend.next_checkpoint_id)

    anyio.run(edit)
    assert "checkpoint 14" in (printed := place.run("report")[1])
    assert "batch 3 of query q" in printed
    assert "batch 4 of query q" in place.run("savepoint", "edited")[1]


@pytest.mark.parametrize("command", ["inspect", "report", "savepoints", "verify", "repair", "sweep"])
def test_no_such_job_is_told(place: Place, command: str) -> None:
    """A mistyped name does not look like a healthy job."""
    status, printed = place.run(command, job="flet")
    assert status == cli.WRONG_CALL
    assert "flet" in printed


def test_repair_puts_back_segments_whose_copies_are_intact(place: Place) -> None:
    """One is damaged, one gone; of a third the copy is damaged as well. The others are let alone."""
    segments, copies = place.segments(), place.directory / "local" / "job_fleet" / "taskowned" / "segments"
    bodies = [path.read_bytes() for path in segments]
    flip(segments[0], 20)
    segments[1].unlink()
    flip(segments[2], 20)
    flip(copies / segments[2].name, 30)
    damaged = segments[0].read_bytes()
    intact = [copies / path.name for path in segments[:2]]
    assert [each["local_copy"] for each in json.loads(place.run("verify", "--json")[1])["damages"]] == [
        *map(str, intact),
        None,
        None,  # of the local copy that is damaged itself
    ]

    def repaired(*options: str) -> list[tuple[str, str, int, bool]]:
        status, printed = place.run("repair", "--json", *options)
        assert status == cli.OK
        return [
            (each["key"], each["path"], each["checkpoint_id"], each["put_back"])
            for each in json.loads(printed)
            if "checkpoint 13 names" in each["proof"]
        ]

    dry = [(f"segments/{path.name}", str(path), 13, False) for path in intact]
    assert repaired() == dry
    assert (segments[0].read_bytes(), segments[1].exists()) == (damaged, False)
    assert repaired("--write") == [(*each[:-1], True) for each in dry]
    assert [segments[at].read_bytes() for at in (0, 1, 3)] == [bodies[at] for at in (0, 1, 3)]
    assert segments[2].read_bytes() != bodies[2]
    assert repaired() == []


def test_repair_puts_back_a_commit_and_then_what_it_alone_needs(place: Place) -> None:
    """In one call: the newest commit is damaged, and its last segment gone."""
    commit, segment = place.job / "commits" / f"{4:012d}", place.segments()[-1]
    flip(commit, 40)
    segment.unlink()
    printed = place.run("repair", "--json", "--write")[1]
    assert [each["key"] for each in json.loads(printed)] == [f"commits/{4:012d}", f"segments/{segment.name}"]
    assert place.run("verify")[0] == cli.OK


def test_a_repair_that_has_nothing_to_look_at_is_told(place: Place) -> None:
    """A root that was forgotten or mistyped, or another primary, does not look as if all were well."""
    assert place.run("repair") == (
        cli.OK,
        "no intact local copy of anything that the primary has damaged or lost\n",
    )
    status, printed = place.run("repair", local=False)
    assert (status, "name the local roots" in printed) == (cli.WRONG_CALL, True)
    status, printed = place.run("repair", "--local", f"{place.directory}/locl", local=False)
    assert (status, "no local root has copies" in printed) == (cli.WRONG_CALL, True)
    (place.directory / "primary").rename(place.directory / "primry")
    status, printed = place.run("repair")
    assert (status, "correct job or primary" in printed) == (cli.WRONG_CALL, True)


@pytest.mark.parametrize("command", ["inspect", "verify", "sweep"])
def test_a_store_that_refuses_is_told(place: Place, command: str) -> None:
    """The primary is a file instead of a directory."""
    (place.directory / "file").write_bytes(b"")
    arguments = [command, "--primary", f"file://{place.directory}/file/deeper", "--job", "fleet"]
    assert cli.main(arguments) in (cli.WRONG_CALL, cli.NO_STORE)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (sb.StateBackendError("x"), cli.DAMAGE),
        (sb.errors.StoreAccessError("x"), cli.NO_STORE),
        (sb.errors.StoreUnavailableError("x"), cli.NO_STORE),
        (sb.errors.CorruptCommitError("x"), cli.NOT_UNDERSTOOD),
        (sb.errors.UnsupportedVersionError("x"), cli.NOT_UNDERSTOOD),
        (sb.errors.WrongJobError("x"), cli.WRONG_CALL),
        (sb.errors.SettingsError("x"), cli.WRONG_CALL),
    ],
)
def test_every_error_has_its_status(
    error: Exception, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one that `docs/reference/command-line.md` lists."""

    async def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(commands, "inspect", fail)
    assert cli.main(["inspect", "--primary", "memory://x", "--job", "x"]) == status
    assert capsys.readouterr().err == "statebackend: x\n"


@pytest.mark.parametrize("command", ["inspect", "dump"])
def test_an_output_that_takes_no_more_is_told(place: Place, command: str) -> None:
    """In one line, and not once more when Python exits."""
    arguments = [command, "--primary", place.settings.primary, "--job", "fleet"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "statebackend", *arguments],
            check=False,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
    assert done.returncode == cli.WRONG_CALL
    assert done.stderr == "statebackend: the output cannot be written: No space left on device\n"


def test_a_closed_output_is_told_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python has no `sys.stdout` then."""
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["inspect", "--primary", "memory://x", "--job", "x"]) == cli.WRONG_CALL
    assert "the standard output is closed" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_encoding_of_the_output_takes_any_text(
    place: Place, encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an old terminal or a container without a locale has: JSON stays JSON."""
    state, key, value = "städte", "Zürich 🛫", "München → 東京, \x1b[31m\x7f\x9b\u202e\U000e0001"

    async def write() -> None:
        async with sb.open_backend(place.settings) as backend:
            backend.value_state(state, str)[key] = value
            await backend.checkpoint(30)

    anyio.run(write)
    where = ["--primary", place.settings.primary, "--job", "fleet"]
    printed: dict[str, str] = {}
    for command, *options in (["get", state, key], ["dump", "--state", state], ["scan", state], ["report"]):
        written = io.BytesIO()
        stdout = io.TextIOWrapper(written, encoding=encoding)
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", stdout)
            assert cli.main([command, *options, *where]) == cli.OK
        printed[command] = written.getvalue().decode(encoding)
    assert all(text.replace("\n", "").isprintable() for text in printed.values())
    assert json.loads(printed["get"]) == value
    for command in ("dump", "scan"):
        row = json.loads(printed[command])
        assert (row["key"], row["value"]) == (key, value)
    assert ("st\\u00e4dte" if encoding == "ascii" else state) in printed["report"]


@pytest.mark.parametrize("command", ["inspect", "report", "savepoints", "verify", "sweep"])
def test_what_a_job_says_does_not_steer_the_terminal(place: Place, command: str) -> None:
    """A query id may hold anything, and a name of a file as well. It is shown escaped."""

    async def write() -> None:
        async with sb.open_backend(place.settings) as backend:
            await backend.checkpoint(30, source=sb.SourceMark("q\x1b]0;owned\x07\u202e", 9))

    anyio.run(write)
    (place.job / "segments" / "\x1b[2Jforeign").write_bytes(b"")
    if command != "report":  # which needs the whole log
        (place.job / "commits" / "000000000000").write_bytes(b"\x1b[31m damaged")
    status, printed = place.run(command, *(["--all"] if command == "sweep" else []))
    assert all(character.isprintable() for character in printed.replace("\n", ""))
    if command == "report":
        assert (status, "q\\x1b]0;owned\\x07\\u202e" in printed) == (cli.OK, True)


def test_an_interruption_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the status that shells use for one."""

    async def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "inspect", interrupted)
    assert cli.main(["inspect", "--primary", "memory://x", "--job", "x"]) == cli.INTERRUPTED


def test_an_entry_of_a_newer_release_stops_a_sweep_and_not_a_look(place: Place) -> None:
    """That entry may point into objects that this release does not know of."""
    path = place.job / "commits" / f"{3:012d}"
    body = path.read_bytes()
    head = body[:7] + bytes([VERSION + 1])
    path.write_bytes(head + zlib.crc32(head + body[12:]).to_bytes(4, "little") + body[12:])
    status, printed = place.run("sweep", "--delete")
    assert status == cli.NOT_UNDERSTOOD
    assert "another release" in printed
    status, printed = place.run("inspect")
    assert status == cli.OK
    assert "another release" in printed


def test_settings_come_from_a_file_or_from_the_environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options take precedence."""
    file = place.directory / "settings.toml"
    file.write_text(f'[statebackend]\njob = "fleet"\nprimary = "{place.settings.primary}"\n', encoding="utf-8")
    assert cli.main(["inspect", "--settings", str(file)]) == cli.OK
    assert cli.main(["inspect", "--settings", str(file), "--job", "other"]) == cli.WRONG_CALL
    monkeypatch.setenv("STATEBACKEND_PRIMARY", place.settings.primary)
    monkeypatch.setenv("STATEBACKEND_JOB", "fleet")
    assert cli.main(["inspect"]) == cli.OK
    assert cli.main(["inspect", "--retain", "0"]) == cli.WRONG_CALL


@pytest.mark.parametrize("missing", ["job", "primary", "local"])
def test_an_option_completes_the_file_or_the_environment(
    place: Place, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what the two say together has to be whole and right: a local root that is not absolute is wrong."""
    right = {"job": "fleet", "primary": place.settings.primary, "local": place.settings.local[0]}
    values = {name: value for name, value in right.items() if name != missing}
    values["local"] = "relative" if missing == "local" else right["local"]
    for name, value in values.items():
        monkeypatch.setenv(f"STATEBACKEND_{name.upper()}", value)
    file = place.directory / "settings.toml"
    file.write_text("[statebackend]\n" + "".join(f'{name} = "{value}"\n' for name, value in values.items()))
    for source in ([], ["--settings", str(file)]):
        assert cli.main(["savepoints", *source]) == cli.WRONG_CALL
        assert cli.main(["savepoints", *source, f"--{missing}", right[missing]]) == cli.OK


def test_without_a_job_the_call_is_wrong(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one with an unknown command."""
    monkeypatch.delenv("STATEBACKEND_JOB", raising=False)
    assert cli.main(["inspect", "--primary", "memory://x"]) == cli.WRONG_CALL
    with pytest.raises(SystemExit) as caught:
        cli.main(["explode"])
    assert caught.value.code == cli.WRONG_CALL


def test_the_package_is_a_command(place: Place) -> None:
    """`python -m statebackend`, in a process of its own."""
    command = [sys.executable, "-m", "statebackend", "verify", "--primary", place.settings.primary, "--job", "fleet"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stderr) == (cli.OK, "")
    assert "4 objects" in done.stdout
