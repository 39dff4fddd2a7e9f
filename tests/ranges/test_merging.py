"""Small change sets of ranges are merged by the commits themselves: no request more, and cached states go on."""

from collections import Counter

import pytest

import statebackend as sb
from statebackend._checkpoint.materialization.tiers import members
from statebackend._log import coordinator
from statebackend._ranges.merged_in_commits import places_in_turn
from statebackend._ranges.range_owners import open_range_owners
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import CountingStore
from tests.knobs import replaced
from tests.ranges.parts import Model, Run, open_run

SETTINGS = sb.Settings(
    job="fleet",
    primary="memory://unused",
    max_parallelism=12,
    materialize_handles_max=0,
    materialize_interval_s=0.0,
    persist_delay_s=0.0,
)
FAN_IN = SETTINGS.materialize_fan_in


def counts(run: Run) -> list[list[int]]:
    """For each range of the newest commit, how many change sets each handle stands for."""
    assert run.coordinator.base is not None
    return [[members(handle) for handle in part.changelog] for part in run.coordinator.base.ranges]


def batch(number: int) -> list[tuple[sb.Key, int]]:
    """Something for every range."""
    return [(key, number) for key in range(30)]


async def test_a_range_lists_few_change_sets_however_many_there_were() -> None:
    """The process that keeps the state goes on across it, another one restores it; and no request is made for it."""
    store, model = CountingStore(MemoryStore()), Model()
    async with open_run(SETTINGS, 3, store) as run, open_range_owners(store=store) as owners:
        before = store.requests.copy()
        found = Counter[str]()
        for number in range(5 * FAN_IN):
            found.update(each.found for each in await run.batch(owners, batch(number)))
            model.apply(batch(number))
        spent = store.requests - before
        assert [sum(each) for each in counts(run)] == [5 * FAN_IN] * 3
        assert all(len(each) < 4 + 2 * FAN_IN and max(each) < 2 * FAN_IN for each in counts(run))
        assert found == {"new": 3, "process": 3 * (5 * FAN_IN - 1)}
        assert spent == {"put_if_absent": 5 * FAN_IN, "put": spent["put"]}  # of the hint
        async with open_range_owners(store=store) as others:
            more = await run.batch(others, batch(1000))
            model.apply(batch(1000))
        assert [each.found for each in more] == ["primary"] * 3
        await model.check(SETTINGS, store)
    assert [info.key async for info in store.list("fleet/segments/")] == []


async def test_a_range_that_has_something_now_and_then_is_merged_too() -> None:
    """In every fourth batch: sixteen would never be at hand together."""
    store, model = MemoryStore(), Model()
    async with open_run(SETTINGS, 1, store) as run, open_range_owners(store=store) as owners:
        for number in range(8 * FAN_IN):
            changes = [] if number % 4 else batch(number)
            await run.batch(owners, changes)
            model.apply(changes)
        (found,) = counts(run)
        assert sum(found) == 2 * FAN_IN
        assert len(found) <= 2 * FAN_IN // 4 + 3
        await model.check(SETTINGS, store)


@pytest.mark.parametrize("changed", [{"materialize_fan_in": 0}, {"inline_bytes_max": 0}])
async def test_what_was_uploaded_is_not_merged_and_nothing_where_it_is_switched_off(changed: dict[str, int]) -> None:
    """To read them again would go through the one process that commits."""
    store, model = MemoryStore(), Model()
    settings = replaced(SETTINGS, **changed)
    async with open_run(settings, 1, store) as run, open_range_owners(store=store) as owners:
        for number in range(2 * FAN_IN):
            await run.batch(owners, batch(number))
            model.apply(batch(number))
        assert counts(run) == [[1] * 2 * FAN_IN]
        await model.check(settings, store)


async def test_what_lies_in_commits_that_are_not_at_hand_stays_as_it_is() -> None:
    """After another process has taken over: nothing is read for it."""
    store, model = CountingStore(MemoryStore()), Model()
    async with open_range_owners(store=store) as owners:
        async with open_run(SETTINGS, 1, store) as run:
            for number in range(FAN_IN - 1):
                await run.batch(owners, batch(number))
                model.apply(batch(number))
        async with open_run(SETTINGS, 1, store) as run:
            before = store.requests.copy()
            for number in range(FAN_IN + 2):
                await run.batch(owners, batch(number))
                model.apply(batch(number))
            assert counts(run) == [[1] * (FAN_IN - 1) + [FAN_IN + 1, 1]]
            assert (store.requests - before).keys() <= {"put_if_absent", "put"}
    await model.check(SETTINGS, store)


async def test_only_so_many_bytes_of_commits_are_kept_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ones; what lies in others is not merged, and nothing else changes."""
    monkeypatch.setattr(coordinator, "RECENT_BYTES_MAX", 5_000)
    store, model = MemoryStore(), Model()
    async with open_run(SETTINGS, 1, store) as run, open_range_owners(store=store) as owners:
        for number in range(FAN_IN + 2):
            await run.batch(owners, batch(number))
            model.apply(batch(number))
            kept = run.coordinator.recent
            assert sum(map(len, kept.values())) <= 5_000
        assert run.coordinator.next_key > next(reversed(kept)) > next(iter(kept))
        await model.check(SETTINGS, store)


def test_each_range_has_its_turn_once_and_the_turns_are_about_as_large() -> None:
    """Otherwise every sixteenth commit would carry what all ranges have changed in sixteen."""
    turns = [places_in_turn(40, turn, FAN_IN) for turn in range(100, 100 + FAN_IN)]
    assert sorted(place for turn in turns for place in turn) == list(range(40))
    assert {len(turn) for turn in turns} == {2, 3}
    assert (
        coordinator.RECENT_MAX >= 2 * FAN_IN
    )  # of each range that has something in every second batch, enough is at hand
