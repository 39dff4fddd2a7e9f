"""A primary without room says so: nobody has to ask if the commit was made."""

import pytest

import statebackend as sb
from statebackend.errors import OutcomeUnknownError, StoreFullError, StoreThrottledError, StoreUnavailableError
from statebackend.objectstore import MemoryStore
from statebackend.testing import Fail, FaultyStore
from tests.knobs import settings_with


def settings_of(inline_bytes_max: int = 65536) -> sb.Settings:
    return settings_with(
        job="fleet",
        primary="memory://unused",
        inline_bytes_max=inline_bytes_max,
        persist_delay_s=0.0,
        upload__retry_delay_s=0.0,
        upload__primary_outage_s=0.0,
    )


def full() -> Fail:
    return Fail(error=StoreFullError("the file system has no room"))


@pytest.mark.parametrize("inline_bytes_max", [0, 65536])
async def test_a_checkpoint_for_which_there_is_no_room_is_not_made_and_says_so(inline_bytes_max: int) -> None:
    """Whether its commit or a segment finds none. Reopened and replayed once there is room, nothing is lost."""
    store, settings = FaultyStore(MemoryStore()), settings_of(inline_bytes_max)
    async with sb.open_backend(settings, store=store) as backend:
        state = backend.value_state("n", int)
        state["k"] = 1
        await backend.checkpoint(1)
        state["k"] = 2
        for operation in ("put", "put_if_absent"):
            fault = full()
            fault.operation = operation
            store.plan.append(fault)
        with pytest.raises(StoreFullError, match="no room"):
            await backend.checkpoint(2)
    with pytest.raises(StoreFullError):
        async with sb.open_backend(settings, store=store):
            pass
    async with sb.open_backend(settings, store=store, read_only=True) as reader:
        assert reader.value_state("n", int)["k"] == 1
    store.plan.clear()
    async with sb.open_backend(settings, store=store) as backend:
        state = backend.value_state("n", int)
        assert state["k"] == 1
        state["k"] = 2
        await backend.checkpoint(2)
    async with sb.open_backend(settings, store=store) as backend:
        assert [each.checkpoint_id async for each in backend.history()] == [2, 1]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (StoreUnavailableError("no answer"), OutcomeUnknownError),
        (StoreThrottledError("slow down"), StoreFullError),
        (full().error, StoreFullError),
    ],
    ids=["no answer", "throttled", "full"],
)
async def test_no_room_says_nothing_of_an_earlier_request_without_an_answer(
    before: Exception, expected: type[Exception]
) -> None:
    """That one may have made the commit, or may yet; one that was throttled has not."""
    store = FaultyStore(MemoryStore())
    async with sb.open_backend(settings_of(), store=store) as backend:
        backend.value_state("n", int)["k"] = 1
        first = Fail(operation="put_if_absent", nth=1, error=before)
        rest = full()
        rest.operation, rest.nth, rest.onwards = "put_if_absent", 2, True
        store.plan += [first, rest]
        with pytest.raises(expected):
            await backend.checkpoint(1)


async def test_a_commit_that_was_made_is_made_whatever_the_store_says_of_room() -> None:
    """It was linked, and then the directory could not be synced, say: the read shows our own stamp."""
    store = FaultyStore(MemoryStore())
    async with sb.open_backend(settings_of(), store=store) as backend:
        backend.value_state("n", int)["k"] = 1
        fault = full()
        fault.operation, fault.moment = "put_if_absent", "after"
        store.plan.append(fault)
        info = await backend.checkpoint(1)
        assert info.checkpoint_id == 1
