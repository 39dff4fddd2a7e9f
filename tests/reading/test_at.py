"""A reader that asks for a moment gets the newest commit not later than it, or hears why there is none."""

import datetime as dt
from typing import Any, Final

import pytest

import statebackend as sb
from statebackend import errors
from statebackend._log.moments import AHEAD_MAX_S, iso_of, moment_s
from statebackend._log.names import entry_key, floor_key
from statebackend._upkeep.job_primary import open_job_primary
from statebackend.objectstore import MemoryStore
from tests.log.swept import HandClock
from tests.reading.states import table_of, values_of

SETTINGS: Final = sb.Settings(job="fleet", primary="memory://unused", inline_bytes_max=0)
TEN: Final = dt.datetime(2020, 2, 29, 10, tzinfo=dt.UTC)
HOUR: Final = dt.timedelta(hours=1)


async def commit(store: sb.ObjectStore, *at: dt.datetime, first: int = 1, **options: Any) -> None:
    """A commit at each of these times, whose ids count from `first`, as do the values of the key."""
    clock = HandClock()
    async with sb.open_backend(SETTINGS, store=store, clock=clock, **options) as backend:
        for number, moment in enumerate(at, first):
            clock.now_s = moment.timestamp()
            backend.value_state("n", int)["k"] = number
            await backend.checkpoint(number)


async def value_at(store: sb.ObjectStore, at: Any) -> int:
    return values_of(await table_of(SETTINGS, "n", store=store, at=at))["k"]


@pytest.fixture
async def store() -> sb.ObjectStore:
    """Commits 1, 2 and 3 at ten, eleven and twelve."""
    store = MemoryStore()
    await commit(store, TEN, TEN + HOUR, TEN + 2 * HOUR)
    return store


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (TEN, 1),
        (TEN + HOUR - dt.timedelta(microseconds=2), 1),
        (TEN + HOUR, 2),
        ((TEN + HOUR).timestamp(), 2),
        (int((TEN + HOUR).timestamp()), 2),
        (str((TEN + HOUR).timestamp()), 2),
        ("2020-02-29T11:00:00Z", 2),
        ("2020-02-29T12:30:00+01:00", 2),
        (dt.datetime(2020, 2, 29, 12, 30, tzinfo=dt.timezone(HOUR)), 2),
        (TEN + 2 * HOUR, 3),
        (TEN + 1000 * HOUR, 3),
    ],
)
async def test_the_newest_commit_not_later_is_read(store: sb.ObjectStore, at: Any, expected: int) -> None:
    assert await value_at(store, at) == expected
    async with sb.read_rows(SETTINGS, store=store, at=at) as rows:
        assert [row.value for row in rows] == [expected]
    async with sb.open_backend(SETTINGS, store=store, at=at, read_only=True) as backend:
        assert backend.value_state("n", int)["k"] == expected


async def test_a_difference_is_between_two_moments(store: sb.ObjectStore) -> None:
    found = [each async for each in sb.diff(SETTINGS, TEN + HOUR / 2, TEN + 3 * HOUR, store=store)]
    assert [(each.before, each.after) for each in found] == [(1, 3)]
    found = [each async for each in sb.diff(SETTINGS, 2, TEN + 3 * HOUR, store=store)]
    assert [(each.before, each.after) for each in found] == [(2, 3)]


async def test_a_time_before_what_is_kept_names_the_oldest_that_is(store: sb.ObjectStore) -> None:
    with pytest.raises(errors.CheckpointNotFoundError) as caught:
        await value_at(store, TEN - HOUR)
    assert caught.value.facts["oldest_checkpoint_id"] == 1
    assert await value_at(store, caught.value.facts["oldest_at"]) == 1
    with pytest.raises(errors.CheckpointNotFoundError):
        async with sb.open_backend(SETTINGS, store=store, at=TEN - HOUR, read_only=True):
            pass


async def test_a_job_without_commits_has_none_of_any_time() -> None:
    with pytest.raises(errors.CheckpointNotFoundError):
        await value_at(MemoryStore(), TEN)


@pytest.mark.parametrize(
    "at",
    [
        TEN.timestamp() * 1e3,
        TEN.timestamp() * 1e6,
        TEN.replace(tzinfo=None),
        "2020-02-29T10:00:00",
        "2020-02-29",
        "ten o'clock",
        "",
        float("nan"),
        float("inf"),
        "inf",
        10**400,
        True,
        b"2020-02-29T10:00:00Z",
        dt.date(2020, 2, 29),
    ],
)
async def test_what_is_no_moment_is_refused(store: sb.ObjectStore, at: Any) -> None:
    """Milliseconds would be a time after the newest commit, and so give that one."""
    with pytest.raises(errors.InputError) as caught:
        await value_at(store, at)
    assert not isinstance(caught.value, errors.CheckpointNotFoundError)


def test_a_moment_that_has_not_come_yet_is_refused() -> None:
    now_s = TEN.timestamp()
    assert moment_s(now_s + AHEAD_MAX_S, now_s=now_s) == now_s + AHEAD_MAX_S
    with pytest.raises(errors.InputError, match="milliseconds"):
        moment_s(now_s + AHEAD_MAX_S + 1, now_s=now_s)


@pytest.mark.parametrize("now_s", [1582970400.123456789, 1700000000.9999999, 0.1 + 0.2, 1e-7])
async def test_a_commit_is_found_by_the_time_that_is_shown(now_s: float) -> None:
    """Though text has microseconds, and the clock of a commit a bit more."""
    store, clock = MemoryStore(), HandClock()
    async with sb.open_backend(SETTINGS, store=store, clock=clock) as backend:
        clock.now_s = now_s
        backend.value_state("n", int)["k"] = 1
        await backend.checkpoint(1)
    assert await value_at(store, iso_of(now_s)) == 1


async def test_a_moment_goes_with_no_other_checkpoint(store: sb.ObjectStore) -> None:
    for other in ({"checkpoint_id": 1}, {"savepoint": "s"}):
        with pytest.raises(errors.InputError, match="only one"):
            await table_of(SETTINGS, "n", store=store, at=TEN, **other)
    with pytest.raises(errors.SettingsError, match="read_only"):
        async with sb.open_backend(SETTINGS, store=store, at=TEN):
            pass
    assert await value_at(store, TEN + 3 * HOUR) == 3


async def test_where_a_job_went_back_a_moment_before_is_as_it_was_then(store: sb.ObjectStore) -> None:
    await commit(store, TEN + 4 * HOUR, first=9, checkpoint_id=1)
    assert await value_at(store, TEN + 3 * HOUR) == 3
    assert await value_at(store, TEN + 4 * HOUR) == 9


async def test_clocks_that_go_back_give_the_newest_that_is_not_later() -> None:
    store = MemoryStore()
    await commit(store, TEN, TEN + 2 * HOUR, TEN + HOUR, TEN + 3 * HOUR)
    assert await value_at(store, TEN + HOUR) == 3
    assert await value_at(store, TEN + 2 * HOUR) == 3


async def test_a_damaged_commit_that_may_be_the_one_is_told(store: sb.ObjectStore) -> None:
    """Its time is not known, so it may be the one for every time before that of the commit behind it."""
    async with open_job_primary(SETTINGS, store) as primary:
        second = (await primary.find(checkpoint_id=2)).commit.sequence
        await primary.store.put(entry_key(second), (b"damaged",))
    assert await value_at(store, TEN + 2 * HOUR) == 3
    with pytest.raises(errors.CorruptCommitError):
        await value_at(store, TEN + HOUR)
    with pytest.raises(errors.CorruptCommitError):
        await value_at(store, TEN)


async def test_a_damaged_commit_is_no_doubt_for_a_time_before_the_next_older_one(store: sb.ObjectStore) -> None:
    """The third is damaged, and the second is too late already."""
    async with open_job_primary(SETTINGS, store) as primary:
        third = (await primary.find(checkpoint_id=3)).commit.sequence
        await primary.store.put(entry_key(third), (b"damaged",))
    assert await value_at(store, TEN) == 1
    with pytest.raises(errors.CorruptCommitError):
        await value_at(store, TEN + HOUR)


async def test_below_the_floor_of_a_sweep_no_commit_is_given(store: sb.ObjectStore) -> None:
    """Though its entry may be there still, what it points into may not."""
    async with open_job_primary(SETTINGS, store) as primary:
        second = (await primary.find(checkpoint_id=2)).commit.sequence
        await primary.store.put(floor_key(second), ())
    assert await value_at(store, TEN + HOUR) == 2
    with pytest.raises(errors.CheckpointNotFoundError, match="oldest_checkpoint_id=2"):
        await value_at(store, TEN)
