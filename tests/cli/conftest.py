"""A job on real files, and the command line on it."""

from pathlib import Path

import anyio
import pytest

import statebackend as sb
from statebackend import cli


class Place:
    """A job on real files, and the command line on it."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.job = directory / "primary" / "fleet"
        self.settings = sb.Settings(
            job="fleet",
            primary=f"file://{directory}/primary",
            local=(f"{directory}/local",),
            persist_delay_s=0.0,
            inline_bytes_max=0,
            secondary_grace_s=60.0,  # a slow machine must not cost a local copy
        )
        self._capsys = capsys

    def run(self, command: str, *options: str, job: str = "fleet", local: bool = True) -> tuple[int, str]:
        """The exit status, and what was printed: stdout, then stderr."""
        where = ["--primary", self.settings.primary, "--job", job]
        where += ["--local", self.settings.local[0]] if local else []
        status = cli.main([command, *options, *where])
        printed = self._capsys.readouterr()
        return status, printed.out + printed.err

    def segments(self) -> list[Path]:
        return sorted((self.job / "segments").iterdir())


async def _work(settings: sb.Settings) -> None:
    async with sb.open_backend(settings) as backend:
        for number in range(4):
            backend.value_state("legs", int)["k"] = number
            savepoint = "before-migration" if number == 0 else None
            await backend.checkpoint(10 + number, source=sb.SourceMark("q", number), savepoint=savepoint)


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Place:
    """A job of four checkpoints, the first of them a savepoint."""
    for name in ("JOB", "PRIMARY", "LOCAL", "CHECKPOINTS_RETAINED"):
        monkeypatch.delenv(f"STATEBACKEND_{name}", raising=False)
    made = Place(tmp_path, capsys)
    anyio.run(_work, made.settings)
    return made
