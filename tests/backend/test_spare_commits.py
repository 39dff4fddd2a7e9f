"""The newest commit is damaged or gone in the primary, and its local copy is good: the state is lost only with both."""

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import statebackend as sb
from statebackend._backend.stores import readable_copies
from statebackend._codec.commit import Commit, decode_entry, encode_entry
from statebackend._log.names import HINT_KEY, entry_key
from statebackend._log.position import Positions
from statebackend._upkeep.job_primary import open_job_primary
from statebackend.errors import CorruptCommitError, DataError, MissingObjectError
from tests.knobs import replaced

Damaging = Callable[[Path], None]


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 4 // 5])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def gone(path: Path) -> None:
    path.unlink()


def older(path: Path) -> None:
    """The bytes of the commit before lie there."""
    path.write_bytes(path.with_name(f"{int(path.name) - 1:012d}").read_bytes())


DAMAGES = pytest.mark.parametrize("damage", [flipped, cut, emptied, gone, older])


def places(settings: sb.Settings, sequence: int) -> tuple[Path, Path]:
    """An entry in the primary, and its local copy."""
    (root,) = settings.local
    key = entry_key(sequence)
    primary = Path(settings.primary.removeprefix("file://"), settings.job)
    return primary / key, Path(root, f"job_{settings.job}", "taskowned", key)


def hint_of(settings: sb.Settings) -> Path:
    return places(settings, 0)[0].parent.parent / HINT_KEY


@pytest.fixture
async def written(settings: sb.Settings) -> sb.Settings:
    """The job with a claim and the commits 1 to 3, which carry their changes."""
    settings = replaced(settings, inline_bytes_max=None)
    await commit_three(settings)
    return settings


async def commit_three(settings: sb.Settings) -> None:
    async with sb.open_backend(settings) as backend:
        for number in (1, 2, 3):
            backend.value_state("n", int)["k"] = number
            await backend.checkpoint(number)


async def value_of(settings: sb.Settings, *, read_only: bool = False) -> int:
    async with sb.open_backend(settings, read_only=read_only) as backend:
        return backend.value_state("n", int)["k"]


@DAMAGES
async def test_the_copy_is_used_and_the_primary_repaired_where_the_hint_names_it(
    written: sb.Settings, damage: Damaging, caplog: pytest.LogCaptureFixture
) -> None:
    """Reading only repairs nothing; opening for write does, and says so."""
    primary, copy = places(written, 3)
    body = primary.read_bytes()
    damage(primary)
    assert await value_of(written, read_only=True) == 3
    assert not primary.exists() or primary.read_bytes() != body
    with caplog.at_level(logging.WARNING):
        assert await value_of(written) == 3
    assert primary.read_bytes() == body == copy.read_bytes()
    assert "put back from its local copy" in caplog.text
    assert await value_of(replaced(written, local=())) == 3


async def test_copies_are_opened_once_and_only_where_a_commit_cannot_be_read(written: sb.Settings) -> None:
    """A reader of a log that is whole does not ask which local roots there are."""
    async with open_job_primary(written, None) as primary:
        opened: list[sb.ObjectStore | None] = []

        def copies() -> sb.ObjectStore | None:
            opened.append(readable_copies(written, None, primary.threads))
            return opened[-1]

        positions = Positions(primary.store, primary.log, copies=copies)
        assert await positions.find_newest() is not None
        assert opened == []
        places(written, 3)[0].unlink()
        for _ in range(2):
            found = await positions.find_newest()
            assert found is not None
            assert found.commit.checkpoint_id == 3
        assert len(opened) == 1


@pytest.mark.parametrize("damage", [flipped, cut])
async def test_what_is_left_of_the_commit_proves_it(written: sb.Settings, damage: Damaging) -> None:
    """Without a hint: the stamp of the attempt that made it is still there."""
    primary, _ = places(written, 3)
    body = primary.read_bytes()
    damage(primary)
    hint_of(written).unlink()
    assert await value_of(written) == 3
    assert primary.read_bytes() == body


@DAMAGES
async def test_a_claim_behind_the_commit_proves_it(written: sb.Settings, damage: Damaging) -> None:
    """Of a process that opened the job and was killed; and of another one after it."""
    for _ in range(2):
        assert await value_of(written) == 3
    primary, _ = places(written, 3)
    body = primary.read_bytes()
    damage(primary)
    hint_of(written).unlink()
    assert await value_of(written) == 3
    assert primary.read_bytes() == body


@pytest.mark.parametrize("damage", [emptied, older])
async def test_a_copy_that_nothing_proves_is_kept_named_and_put_back_on_request(
    written: sb.Settings, damage: Damaging
) -> None:
    """Opening fails; the advised way out, an older checkpoint, does not remove the copy."""
    primary, copy = places(written, 3)
    body = primary.read_bytes()
    damage(primary)
    hint_of(written).unlink()
    with pytest.raises(CorruptCommitError):
        await value_of(written)
    async with sb.open_backend(written, checkpoint_id=2) as backend:
        assert backend.value_state("n", int)["k"] == 2
    assert copy.read_bytes() == body
    (named,) = [each for each in (await sb.verify(written)).damages if each.key == entry_key(3)]
    assert named.local_copy == str(copy)
    (found,) = await sb.repair(written)
    assert (found.key, found.path, found.checkpoint_id, found.put_back) == (entry_key(3), str(copy), 3, False)
    assert found.proof is None
    assert primary.read_bytes() != body
    (found,) = await sb.repair(written, dry_run=False)
    assert found.put_back
    assert primary.read_bytes() == body
    assert await value_of(written) == 3
    assert await sb.repair(written) == ()


async def test_a_commit_that_a_later_one_points_into_is_repaired_once(written: sb.Settings) -> None:
    """As a commit, and not once more as what carries the other's changes."""
    primary, copy = places(written, 2)
    body = primary.read_bytes()
    cut(primary)
    for dry_run in (True, False):
        (found,) = await sb.repair(written, dry_run=dry_run)
        assert (found.key, found.path, found.checkpoint_id) == (entry_key(2), str(copy), 2)
    assert primary.read_bytes() == body


async def test_a_copy_in_the_place_of_the_claim_goes_with_the_opening(written: sb.Settings) -> None:
    """Its writer was killed between the two copies of a commit that was never made. The one behind it stays."""
    _, copy = places(written, 3)
    begun, beyond = (places(written, number)[1] for number in (4, 5))
    for path in (begun, beyond):
        path.write_bytes(copy.read_bytes())
    assert await value_of(written) == 3
    assert (begun.exists(), beyond.exists(), copy.exists()) == (False, True, True)


@pytest.mark.parametrize("damage", [flipped, gone])
async def test_a_copy_of_a_commit_that_was_never_made_is_not_used(settings: sb.Settings, damage: Damaging) -> None:
    """Whole and of this place, from a writer that was fenced: the log has another stamp there."""
    await commit_three(settings)  # in segments, so that nothing but the stamp tells the two apart
    primary, copy = places(settings, 3)
    made = decode_entry(primary.read_bytes(), entry_key(3), job=settings.job)
    assert isinstance(made, Commit)
    copy.write_bytes(encode_entry(msgspec.structs.replace(made, stamp="f" * 32), entry_key(3)).body)
    damage(primary)
    damaged = primary.read_bytes() if primary.exists() else None
    for read_only in (True, False):
        with pytest.raises(DataError):
            await value_of(settings, read_only=read_only)
    assert (primary.read_bytes() if primary.exists() else None) == damaged
    async with sb.open_backend(settings, checkpoint_id=2) as backend:
        assert backend.value_state("n", int)["k"] == 2


async def test_recovery_fails_if_both_copies_do(written: sb.Settings) -> None:
    """Then an older checkpoint can be opened, by its id or by a setting."""
    for path in places(written, 3):
        flipped(path)
    with pytest.raises(CorruptCommitError):
        await value_of(written)
    assert await sb.repair(written) == ()
    async with sb.open_backend(written, checkpoint_id=2) as backend:
        assert backend.value_state("n", int)["k"] == 2


@pytest.mark.parametrize("damage", [flipped, gone])
async def test_a_setting_says_that_an_older_checkpoint_will_do(
    settings: sb.Settings, damage: Damaging, caplog: pytest.LogCaptureFixture
) -> None:
    """Off by default. What lay between is gone, and that is logged; the job goes on from there, also without it."""
    settings = replaced(settings, local=())
    await commit_three(settings)
    damage(places(replaced(settings, local=("/",)), 3)[0])
    with pytest.raises((CorruptCommitError, MissingObjectError)):
        await value_of(settings)
    lenient = replaced(settings, fall_back_to_older=True)
    with caplog.at_level(logging.WARNING):
        async with sb.open_backend(lenient) as backend:
            assert backend.value_state("n", int)["k"] == 2
            backend.value_state("n", int)["k"] = 30
            await backend.checkpoint(backend.next_checkpoint_id)
    assert "an older checkpoint" in caplog.text
    assert await value_of(settings) == 30
