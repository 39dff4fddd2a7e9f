"""A stream begins where the seed of its job ends: decided from what the seed, the sink and Spark say."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

import statebackend as sb
from statebackend.errors import InputError, SettingsError, StateGoneError
from statebackend.ids import CommitSummary
from statebackend.objectstore import MemoryStore
from statebackend.spark.replay import newest_marks
from statebackend.spark.starts import as_told, check_start
from statebackend.testing import run_virtual
from tests.rewrite.jobs import settings_of

CUT = {"orders": {"0": 1234, "1": 9}}
TWO = {"orders": {"0": 1}, "returns": {"0": 2}}


@pytest.mark.parametrize(
    ("seeded", "told", "sources"),
    [
        (None, None, [7]),
        (CUT, CUT, []),
        (CUT, CUT, [CUT]),
        (CUT, None, [CUT]),
        (CUT, CUT, [7, {"reservoirVersion": 3}]),
        (TWO, None, [{"returns": {"0": 2}}, {"orders": {"0": 1}}]),
        (41, 41, [7]),
        ({"version": 41}, {"version": 41}, [{"reservoirVersion": 42}]),
    ],
)
def test_a_stream_that_begins_where_the_state_ends_is_let_through(seeded: Any, told: Any, sources: list[Any]) -> None:
    """Told to the sink, or said by the sources of the query."""
    check_start(seeded, told, sources)


@pytest.mark.parametrize(
    ("seeded", "told", "sources", "reason"),
    [
        (CUT, {"orders": {"0": 1234}}, [], "another start"),
        (CUT, {"orders": {"0": 1234}}, [CUT], "another start"),
        (None, CUT, [CUT], "another start"),
        (CUT, CUT, [{"orders": {"0": 0, "1": 9}}], "begins elsewhere"),
        (CUT, None, [{"orders": {"0": 0, "1": 9}}], "begins elsewhere"),
        (CUT, None, [], "not told where"),
        (CUT, None, [7], "not told where"),
        (TWO, None, [{"orders": {"0": 1}}], "not told where"),
        ({}, None, [], "not told where"),
        (0, None, [], "not told where"),
    ],
)
def test_any_other_stream_is_refused(seeded: Any, told: Any, sources: list[Any], reason: str) -> None:
    """With both starts."""
    with pytest.raises(StateGoneError, match=reason) as caught:
        check_start(seeded, told, sources)
    assert caught.value.facts["starts_from"] == seeded


def test_what_json_has_no_place_for_is_refused() -> None:
    """At the sink and at the seed; what it writes in its own way is compared as it reads it."""
    assert as_told({1: (2, 3)}) == {"1": [2, 3]}
    with pytest.raises(SettingsError):
        as_told(object())


async def _summaries(backend: sb.StateBackend) -> AsyncIterator[CommitSummary]:
    async for summary in backend.history():
        yield summary


@run_virtual
async def test_the_start_is_carried_until_the_first_batch() -> None:
    """Past edits by hand, a rewrite and a clone; a rollback to before that batch asks for it again."""
    store, settings = MemoryStore(), settings_of(16)

    def states(backend: Any) -> Any:
        return backend.value_state("value", int)

    with pytest.raises(InputError, match="something that JSON has"):
        await sb.seed(settings, states, {"value": {"a": 1}}, starts_from={1: object()}, store=store)
    await sb.seed(settings, states, {"value": {"a": 1}}, starts_from=CUT, store=store)
    async with sb.open_backend(settings, store=store) as backend:
        states(backend)["b"] = 2
        await backend.checkpoint(1)
    await sb.rewrite(settings_of(32), store=store)
    settings = settings_of(32)
    await sb.clone(settings_of(32, job="other"), from_=settings, store=store, from_store=store)
    for job in ("other", "fleet"):
        async with sb.open_backend(settings_of(32, job=job), store=store) as backend:
            marks = await newest_marks(_summaries(backend), "query", adopt=False)
            assert (marks.newest, marks.starts_from) == (None, CUT)
            states(backend)["c"] = 3
            await backend.checkpoint(backend.next_checkpoint_id, source=sb.SourceMark("query", 0))
            marks = await newest_marks(_summaries(backend), "query", adopt=False)
            assert (marks.own, marks.starts_from) == (sb.SourceMark("query", 0), None)
    async with sb.open_backend(settings, store=store, checkpoint_id=2) as backend:
        assert (await newest_marks(_summaries(backend), "query", adopt=False)).starts_from == CUT
