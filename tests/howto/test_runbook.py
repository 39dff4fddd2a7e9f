"""The runbook: its commands are run, entry by entry, on a job of real files, and its claims about them are true."""

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

import statebackend as sb
from statebackend import cli
from statebackend.errors import FencedError, StoreFullError, WrongJobError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore
from tests.howto.pages import PAGES, code_of
from tests.knobs import replaced

PAGE = (PAGES / "runbook.md").read_text(encoding="utf-8")
ENTRIES = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")}


class Site:
    """The directories that the page names, below one of the test's, and what its commands did there."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root = root
        self.settings = sb.Settings(
            job="fleet", primary=f"file://{root}/data/state", local=(f"{root}/var/lib/statebackend",)
        )
        self.said: list[str] = []
        self._capsys = capsys

    def batch(self, settings: sb.Settings | None = None) -> int:
        """A run that sees one more flight, and how many there have been then."""

        async def run() -> int:
            async with sb.open_backend(settings or self.settings) as backend:
                counts = backend.value_state("counts", int, default=0)
                counts["N14228"] += 1
                number = backend.next_checkpoint_id
                await backend.checkpoint(number, source=sb.SourceMark("query", number))
                return counts["N14228"]

        return asyncio.run(run())

    def follow(self, entry: str, command: str | None = None) -> list[int]:
        """Run the commands of an entry, or its next one that begins like `command`; return their status."""
        lines = re.sub(r"\\\n", " ", code_of(ENTRIES[entry], "shell")).splitlines()
        return [self._run(shlex.split(line)) for line in lines if line.startswith(command or "") and line]

    def place(self, path: str) -> Path:
        return self.root / path.lstrip("/")

    def _run(self, words: list[str]) -> int:
        here = [re.sub(r"/(?=data/|var/lib/)", f"{self.root}/", word) for word in words]
        if here[0] != "statebackend":
            return subprocess.run(here, check=False).returncode
        status = cli.main(here[1:])
        printed = self._capsys.readouterr()
        self.said.append(printed.out + printed.err)
        return status


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Site:
    """The job after three batches, with the variables that the page exports."""
    exported = re.findall(r"(STATEBACKEND_\w+)=(\S+)", code_of(PAGE, "shell").split("\nstatebackend")[0])
    assert [name for name, _ in exported] == ["STATEBACKEND_PRIMARY", "STATEBACKEND_JOB", "STATEBACKEND_LOCAL"]
    site = Site(tmp_path, capsys)
    for name in [name for name in os.environ if name.startswith("STATEBACKEND_")]:  # what asks for long forms of tests
        monkeypatch.delenv(name)
    for name, value in exported:
        monkeypatch.setenv(name, re.sub(r"/(?=data/|var/lib/)", f"{tmp_path}/", value))
    assert [site.batch() for _ in range(3)] == [1, 2, 3]
    return site


def test_every_entry_has_its_test() -> None:
    """By its title."""
    code = Path(__file__).read_text(encoding="utf-8")
    titles = [title for title in ENTRIES if not title.startswith("#")]
    assert [title for title in titles if f'follow("{title}"' not in code] == []


def test_the_numbers_look_wrong(site: Site) -> None:
    """Bytes, one key at a checkpoint, one batch; and the last good checkpoint under a name, from which it goes on."""
    assert site.follow("The numbers look wrong: what now") == [0, 0, 0, 0, 0], site.said
    _, log, got, changed, _ = site.said
    assert ["2 -> 3" in log, "1 -> 2" in log] == [True, True]
    assert got.strip() == "2"
    assert "N14228" in changed
    assert site.batch() == 4

    async def from_savepoint() -> int:
        async with sb.open_backend(site.settings, savepoint="last-good", read_only=True) as backend:
            return backend.value_state("counts", int)["N14228"]

    assert asyncio.run(from_savepoint()) == 2
    segment = max(
        (path for path in site.place("data/state/fleet").rglob("*") if path.is_file()),
        key=lambda path: path.stat().st_size,
    )
    segment.write_bytes(segment.read_bytes()[:-1])
    assert site.follow("The numbers look wrong: what now", "statebackend verify") == [1]


def test_a_lost_host(site: Site) -> None:
    """All of it comes from the primary, and the next start has a local copy again."""
    shutil.rmtree(site.settings.local[0])
    assert site.batch() == 4
    assert site.follow("A lost host") == [0]
    assert re.search(r" 0 files .* from local copies, [1-9]", site.said[-1])
    assert site.batch(replaced(site.settings, local=(f"{site.root}/other",))) == 5  # the other host
    assert site.batch() == 6  # the old one is back, with copies that are behind


def test_a_full_disk(site: Site) -> None:
    """Local: the batch is committed. Primary: nothing of it is, and it comes again, once."""
    assert site.batch(replaced(site.settings, local_bytes_max=1)) == 4  # no room; `tests/local` has disks that are full
    assert site.follow("Disk full") == [0, 0]

    async def full_and_not() -> int:
        store = FaultyStore(MemoryStore())
        settings = replaced(site.settings, local=(), inline_bytes_max=0)
        for plan in ([], [Fail(operation="put", error=StoreFullError("full"))], []):
            store.plan[:] = plan
            with contextlib.suppress(StoreFullError):
                async with sb.open_backend(settings, store=store) as backend:
                    counts = backend.value_state("counts", int, default=0)
                    counts["a"] += 1
                    await backend.checkpoint(backend.next_checkpoint_id)
        return counts["a"]

    assert asyncio.run(full_and_not()) == 2


def test_two_queries_by_mistake(site: Site) -> None:
    """The later one has the job; the earlier one is told so, and has changed nothing."""

    async def both() -> None:
        async with sb.open_backend(site.settings) as early:
            early.value_state("counts", int)["N14228"] = 1000
            async with sb.open_backend(site.settings) as later:
                later.value_state("counts", int)["N14228"] += 1
                await later.checkpoint(later.next_checkpoint_id)
            with pytest.raises(FencedError):
                await early.checkpoint(early.next_checkpoint_id)

    asyncio.run(both())
    assert site.follow("Two queries by mistake") == [0]
    assert site.batch() == 5


def test_daily_savepoints(site: Site) -> None:
    assert site.follow("Daily savepoints") == [0, 0]
    assert re.search(r"nightly-\d{8}T\d{6}Z", site.said[-1])


def test_an_upgrade_and_the_way_back(site: Site) -> None:
    """The copy in the place of the job; `tests/backend/test_downgrade.py` has what an earlier release refuses."""
    assert site.follow("Upgrade a release and go back") == [0, 0]
    assert site.batch() == 4
    job = site.place("data/state/fleet")
    shutil.rmtree(job)
    shutil.copytree(site.place("data/before-upgrade"), job)
    assert site.batch() == 4


def test_two_environments(site: Site) -> None:
    """Each with its own roots; and with the same, the state is right and `verify` says what it sees."""
    assert site.follow("Two environments") == [0, 0]
    staging = replaced(site.settings, primary=f"file://{site.place('data/staging')}")
    apart = replaced(staging, local=(str(site.place("var/lib/staging")),))
    assert [site.batch(apart), site.batch(), site.batch(apart)] == [4, 4, 5]
    assert [site.batch(staging), site.batch(), site.batch(staging)] == [6, 5, 7]
    assert site.follow("The numbers look wrong: what now", "statebackend verify") == [0]
    assert "of another run" in site.said[-1]


def test_a_move(site: Site) -> None:
    """The clone goes on where the job stood; the old place is empty for a driver that nobody has told."""
    assert site.follow("Move to another bucket") == [0, 0, 0]
    moved = replaced(site.settings, primary=f"file://{site.place('data/moved')}")
    assert site.batch(moved) == 4
    assert list(site.place("data/state").iterdir()) == [site.place("data/state/fleet.moved")]


def test_another_name(site: Site) -> None:
    """By a clone; a folder that was renamed by hand is refused, since each commit carries the name of its job."""
    assert site.follow("Rename a job") == [0]
    assert site.batch(replaced(site.settings, job="fleet-eu")) == 4
    site.place("data/state/fleet").rename(site.place("data/state/other"))
    with pytest.raises(WrongJobError):
        site.batch(replaced(site.settings, job="other"))
