"""A stream whose job gets other key groups between two runs continues as if nothing had happened."""

import asyncio

import msgspec

import statebackend as sb


def rewritten(settings: sb.Settings, max_parallelism: int) -> sb.Settings:
    """The settings with which the stream is started from then on."""
    changed = msgspec.structs.replace(settings, max_parallelism=max_parallelism)
    asyncio.run(sb.rewrite(changed))
    return changed


def test_a_stream_goes_on_after_a_rewrite_exactly_once(stream, open_sink, counting, read) -> None:
    """The batch that Spark delivers again is known; the next one is applied to what there was."""
    stream.feed("a")
    stream.feed("a", "b")
    stream.run(open_sink(counting, stream.settings))
    settings = rewritten(stream.settings, 1000)
    stream.forget_commit(1)
    stream.feed("b", "c")
    stream.run(open_sink(counting, settings))
    assert counting.batches == [0, 1, 2]
    found = read(settings)
    assert found.counts == {"a": 2, "b": 2, "c": 1}
    assert found.batches == [2, 1, 1, 0]


def test_a_stream_that_is_started_with_the_old_number_fails_and_changes_nothing(
    stream, open_sink, counting, read
) -> None:
    """It says which of the two settings to use."""
    stream.feed("a")
    stream.run(open_sink(counting, stream.settings))
    settings = rewritten(stream.settings, 7)
    before = read(settings)
    stream.feed("b")
    message = stream.fail(open_sink(counting, stream.settings))
    assert "max_parallelism=128" in message
    assert "committed=7" in message
    assert read(settings) == before
