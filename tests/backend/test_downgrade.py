"""Going back to an earlier release: what it can read it continues, and what it cannot it refuses and leaves as it is.

A release that knows less is played by this one, with the version of commits that it knows taken down.
"""

from pathlib import Path

import pytest

import statebackend as sb
from statebackend._codec import commit as commits
from statebackend.errors import UnsupportedVersionError


@pytest.fixture
def settings(tmp_path: Path) -> sb.Settings:
    return sb.Settings(job="totals", primary=f"file://{tmp_path}/primary", local=())


def stored(settings: sb.Settings) -> dict[str, bytes]:
    """Every object of the primary."""
    folder = Path(settings.primary.removeprefix("file://"))
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


async def count(settings: sb.Settings, *, savepoint: str | None = None, with_output: bool = False) -> int:
    """One more, and the number then. Output is what commits of version 1 do not have."""
    async with sb.open_backend(settings, savepoint=savepoint) as backend:
        counts = backend.value_state("counts", int, default=0)
        counts["a"] += 1
        number = backend.next_checkpoint_id
        output = sb.Output(b"schema", 1, (b"rows",)) if with_output else None
        await backend.checkpoint(number, source=sb.SourceMark("query", number), output=output)
        return counts["a"]


async def test_an_earlier_release_continues_what_says_nothing_new(
    settings: sb.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer uses the oldest version that can say all of it."""
    assert await count(settings) == 1
    monkeypatch.setattr(commits, "VERSION", 1)
    assert await count(settings) == 2


async def test_an_earlier_release_refuses_what_it_does_not_know_and_changes_nothing(
    settings: sb.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its opening, nor a sweep, nor a reader; and the later release goes on as if nothing had been."""
    assert await count(settings) == 1
    await sb.savepoint(settings, "before-upgrade")
    assert await count(settings, with_output=True) == 2
    before = stored(settings)
    with monkeypatch.context() as earlier:
        earlier.setattr(commits, "VERSION", 1)
        with pytest.raises(UnsupportedVersionError, match="upgrade"):
            await count(settings)
        with pytest.raises(UnsupportedVersionError, match="upgrade"):
            await sb.sweep(settings, dry_run=False, min_age_s=0)
        with pytest.raises(UnsupportedVersionError, match="upgrade"):
            await count(settings, savepoint="before-upgrade")
        assert stored(settings) == before
    assert await count(settings) == 3


async def test_a_copy_from_before_the_upgrade_is_the_way_back(
    settings: sb.Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same job, in a copy of its primary: for an earlier release, when the later one has written what is new."""
    assert await count(settings) == 1
    copied = stored(settings)
    assert await count(settings, with_output=True) == 2
    for name, content in copied.items():
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    monkeypatch.setattr(commits, "VERSION", 1)
    assert await count(sb.Settings(job="totals", primary=f"file://{tmp_path}/copy", local=())) == 2
