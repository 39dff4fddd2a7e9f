"""Bad input gets an error of its own, and changes nothing on disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest

import statebackend as sb
from statebackend._log.names import entry_key
from statebackend.errors import (
    CorruptCommitError,
    CorruptSegmentError,
    InputError,
    KeyGroupError,
    KeyTypeError,
    LocalRootError,
    MissingObjectError,
    PrimaryUrlError,
    SettingsError,
    StateTypeError,
    ValueEncodeError,
    WrongJobError,
)
from tests.backend.conftest import Leg, data_of, local_segments, tree_of


class Loose(msgspec.Struct):
    origin: int
    dest: str


@pytest.fixture
async def written(settings: sb.Settings) -> sb.Settings:
    """The job with two committed checkpoints."""
    async with sb.open_backend(settings) as backend:
        for number in (1, 2):
            backend.value_state("legs", Leg)[f"N{number}"] = Leg("EWR", "IAH", number)
            await backend.checkpoint(number)
    return settings


async def _open(settings: sb.Settings) -> sb.RestoreReport | None:
    async with sb.open_backend(settings) as backend:
        return backend.restored


def _flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize("url", ["ftp://host/x", "/data/state", "file://relative", "memory://", "file:///", "s4://b/p"])
def test_a_primary_that_is_not_a_known_url_is_refused(url: str) -> None:
    """Unknown scheme or incomplete: refused when the settings are made, with the known forms."""
    with pytest.raises(PrimaryUrlError) as caught:
        sb.Settings(job="fleet", primary=url)
    assert caught.value.facts == {"primary": url}


@pytest.mark.parametrize("root", ["relative/dir", "./here", ""])
def test_a_relative_local_root_is_refused(root: str) -> None:
    """Two processes with different working directories would otherwise have different copies."""
    with pytest.raises(LocalRootError):
        sb.Settings(job="fleet", primary="memory://x", local=(root,))


async def test_an_unwritable_local_root_is_refused_at_open(
    with_settings: Callable[..., sb.Settings], tmp_path: Path
) -> None:
    """A root that cannot be made says so at once, and leaves no trace in either copy."""
    (tmp_path / "file").write_text("not a directory")
    before = tree_of(tmp_path)
    with pytest.raises(LocalRootError) as caught:
        await _open(with_settings(local=(f"{tmp_path}/file/below",)))
    assert caught.value.facts["root"] == f"{tmp_path}/file/below"
    assert tree_of(tmp_path) == before


@pytest.mark.parametrize("key", [None, 1.5, True, [1], {"a": 1}, (), ("a", None), 2**63, "\ud800"])
async def test_a_key_of_the_wrong_type_is_refused(written: sb.Settings, key: Any, tmp_path: Path) -> None:
    """The state, and what a later checkpoint writes, are as if the call had not been."""
    async with sb.open_backend(written) as backend:
        legs = backend.value_state("legs", Leg)
        before = dict(legs)
        with pytest.raises(KeyTypeError):
            legs[key] = Leg("a", "b")
        assert dict(legs) == before
        info = await backend.checkpoint(3)
        assert info.changes == 0


@pytest.mark.parametrize("value", [None, 7, Loose(1, "x"), Leg("a", b"\xff"), Leg("a", "b", 2**70), object()])
async def test_a_value_that_cannot_be_encoded_is_refused(written: sb.Settings, value: Any) -> None:
    """Not the declared type in any part: refused on the spot, and the former value stays."""
    async with sb.open_backend(written) as backend:
        legs = backend.value_state("legs", Leg)
        with pytest.raises(ValueEncodeError):
            legs["N1"] = value
        assert legs["N1"] == Leg("EWR", "IAH", 1)
        assert (await backend.checkpoint(3)).changes == 0


async def test_a_state_opened_with_another_type_is_refused(written: sb.Settings, tmp_path: Path) -> None:
    """The error carries both schemas; the state can still be opened as it was written."""
    before = data_of(tmp_path)
    async with sb.open_backend(written) as backend:
        with pytest.raises(StateTypeError) as caught:
            backend.value_state("legs", Loose)
        assert caught.value.facts["schema_written"] != caught.value.facts["schema_declared"]
        assert len(backend.value_state("legs", Leg)) == 2
    assert data_of(tmp_path) == before


async def test_a_key_of_another_owner_is_refused(settings: sb.Settings) -> None:
    """A backend with a part of the key groups takes no key that it would lose."""
    async with sb.open_backend(settings, key_groups=sb.owners.KeyGroupRange(0, 0)) as backend:
        numbers = backend.value_state("n", int)
        accepted = 0
        for key in range(1000):
            try:
                numbers[key] = key
                accepted += 1
            except KeyGroupError:
                pass
        assert accepted == len(numbers)
        assert 0 < accepted < 50


@pytest.mark.parametrize("copy", ["both", "primary"])
@pytest.mark.parametrize("damage", ["flip", "cut"])
async def test_a_damaged_segment_without_a_good_copy_is_named(
    written: sb.Settings, damage: str, copy: str, tmp_path: Path
) -> None:
    """Every copy is bad: the object, the offset and the reason are told, and no data is changed."""
    (first, _) = local_segments(tmp_path / "local")
    paths = [tmp_path / "primary/fleet/segments" / first.name, first]
    if copy == "primary":
        first.unlink()
        paths = paths[:1]
    for path in paths:
        if damage == "flip":
            _flip(path, 20)
        else:
            path.write_bytes(path.read_bytes()[:-7])
    before = data_of(tmp_path)
    with pytest.raises(CorruptSegmentError) as caught:
        await _open(written)
    assert caught.value.facts["object"] == f"segments/{first.name}"
    assert "offset" in caught.value.facts
    assert data_of(tmp_path) == before


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
async def test_a_damaged_commit_is_named_and_an_earlier_one_can_be_opened(
    written: sb.Settings, damage: str, tmp_path: Path
) -> None:
    """The newest commit is bad: that is an error, never silently the one before; asking for that one works."""
    for path in (tmp_path / "primary/fleet", tmp_path / "local/job_fleet/taskowned"):  # a good copy would be used
        entry = path / entry_key(2)
        if damage == "flip":
            _flip(entry, len(entry.read_bytes()) // 2)
        else:
            entry.write_bytes(entry.read_bytes()[: -5 if damage == "cut" else 0])
    before = tree_of(tmp_path)
    with pytest.raises(CorruptCommitError) as caught:
        await _open(written)
    assert caught.value.facts["object"] == entry_key(2)
    assert tree_of(tmp_path) == before
    async with sb.open_backend(written, checkpoint_id=1):
        pass
    with pytest.raises(CorruptCommitError):  # nobody has decided yet to go on without it
        await _open(written)
    async with sb.open_backend(written, checkpoint_id=1) as backend:
        assert set(backend.value_state("legs", Leg)) == {"N1"}
        assert backend.newest is not None
        assert backend.newest.sequence == 1
        info = await backend.checkpoint(backend.next_checkpoint_id)
        assert info.sequence == 5  # behind the damaged one, which stays for whoever looks into it, and two claims
    assert (await _open(written)) is not None


async def test_a_missing_segment_is_named(written: sb.Settings, tmp_path: Path) -> None:
    """A commit that points at nothing is not restored as if it did not need it."""
    (first, _) = local_segments(tmp_path / "local")
    first.unlink()
    (tmp_path / "primary/fleet/segments" / first.name).unlink()
    with pytest.raises(MissingObjectError) as caught:
        await _open(written)
    assert caught.value.facts["object"] == f"segments/{first.name}"


async def test_a_commit_of_another_job_is_refused(
    written: sb.Settings, with_settings: Callable[..., sb.Settings], tmp_path: Path
) -> None:
    """A directory copied under another job's name does not become that job's state."""
    (tmp_path / "primary/fleet").rename(tmp_path / "primary/other")
    before = tree_of(tmp_path / "primary")
    with pytest.raises(WrongJobError) as caught:
        await _open(with_settings(job="other"))
    assert (caught.value.facts["job"], caught.value.facts["job_found"]) == ("other", "fleet")
    assert tree_of(tmp_path / "primary") == before


async def test_another_max_parallelism_is_refused(
    written: sb.Settings, with_settings: Callable[..., sb.Settings], tmp_path: Path
) -> None:
    """Key groups of two sizes do not mix; the committed number is told."""
    before = tree_of(tmp_path)
    with pytest.raises(SettingsError) as caught:
        await _open(with_settings(max_parallelism=64))
    assert caught.value.facts == {"max_parallelism": 64, "committed": 128}
    assert tree_of(tmp_path) == before


@pytest.mark.parametrize("checkpoint_id", [2**64 - 1, 2**63, "1", 1.0, True, None])
async def test_what_is_no_checkpoint_id_is_refused_and_costs_nothing(settings: sb.Settings, checkpoint_id: Any) -> None:
    """An id that cannot be stored, or that leaves no room for a next one, closed the job for good."""
    async with sb.open_backend(settings) as backend:
        backend.value_state("legs", Leg)["N1"] = Leg("EWR", "IAH", 1)
        with pytest.raises(InputError, match="an int from 0 to"):
            await backend.checkpoint(checkpoint_id)
        await backend.checkpoint(1)
        if checkpoint_id is not None:
            with pytest.raises(InputError, match="an int from 0 to"):
                async with sb.open_backend(settings, checkpoint_id=checkpoint_id, read_only=True):
                    pass
    everything = sb.owners.KeyGroupRange(0, settings.max_parallelism - 1)
    async with sb.open_backend(settings, key_groups=everything) as owner:
        assert owner.value_state("legs", Leg)["N1"].flown == 1
        with pytest.raises(InputError, match="an int from 0 to"):
            await owner.snapshot(checkpoint_id)


async def test_the_largest_checkpoint_id_leaves_a_job_that_can_be_read(settings: sb.Settings) -> None:
    """There is no larger one, and that is said."""
    async with sb.open_backend(settings) as backend:
        backend.value_state("legs", Leg)["N1"] = Leg("EWR", "IAH", 1)
        await backend.checkpoint(2**63 - 1)
    async with sb.open_backend(settings) as backend:
        assert backend.value_state("legs", Leg)["N1"].flown == 1
        with pytest.raises(InputError, match="an int from 0 to"):
            await backend.checkpoint(backend.next_checkpoint_id)


async def test_a_call_from_another_event_loop_is_refused(settings: sb.Settings) -> None:
    """As of somebody who has a thread with a loop of its own: what is awaited there wakes up on the first one."""
    async with sb.open_backend(settings) as backend:
        backend.value_state("legs", Leg)["N1"] = Leg("EWR", "IAH", 1)
        for call in (lambda: backend.checkpoint(1), lambda: backend.savepoint("first")):
            with pytest.raises(InputError, match="run_coroutine_threadsafe"):
                await anyio.to_thread.run_sync(anyio.run, call)
        await backend.checkpoint(1)
    async with sb.open_backend(settings) as backend:
        assert dict(backend.value_state("legs", Leg)) == {"N1": Leg("EWR", "IAH", 1)}
