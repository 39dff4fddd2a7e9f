"""What a query in Spark asks for, before anything is read: names, forms, and what goes together."""

from typing import Any

import pytest

import statebackend as sb
from statebackend import errors
from statebackend.spark.reading.read_options import feed_of_batch, feed_of_stream, metadata_options, state_options

FLEET = sb.Settings(
    job="fleet",
    primary="s3://bucket/state",
    s3=sb.settings.S3Settings(access_key_id="id", secret_access_key="hidden"),  # type: ignore[arg-type]
)
SHOP = sb.Settings(job="shop", primary="file:///data")
JOBS = {"fleet": FLEET, "shop": SHOP}


def asked(jobs: dict[str, sb.Settings] = JOBS, /, **options: Any) -> Any:
    return state_options({name: str(value) for name, value in options.items()}, jobs)


def test_a_registered_job_is_read_by_its_settings() -> None:
    """By its name; without one if it is the only one. Options of settings are added."""
    assert asked(job="fleet").settings == FLEET
    assert asked({"shop": SHOP}).settings == SHOP
    changed = asked(job="fleet", **{"s3.region": "eu-west-1", "RESTORE_CONCURRENCY_MAX": 3}).settings
    assert (changed.s3.region, changed.restore_concurrency_max, changed.primary) == ("eu-west-1", 3, FLEET.primary)


def test_a_job_that_nobody_registered_needs_its_primary() -> None:
    """As an option, or as the path of `load`, as Spark's own reader has it."""
    for name in ("primary", "path"):
        assert asked({}, job="other", **{name: "file:///data"}).settings == sb.Settings(
            job="other", primary="file:///data"
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "name the job"),
        ({"job": "flet"}, "did you mean 'fleet'"),
        ({"job": "fleet", "stateVarname": "a", "bachId": 1}, "did you mean 'batchId'"),
        ({"job": "fleet", "state": "a"}, "did you mean 'stateVarName'"),
        ({"job": "fleet", "Timers": "true"}, "did you mean 'readRegisteredTimers'"),
        ({"job": "fleet", "changeFeed": "true"}, "did you mean 'readChangeFeed'"),
        ({"job": "fleet", "s3.regoin": "eu-west-1"}, "did you mean 's3.region'"),
        ({"job": "fleet", "anything": 1}, "there are job, primary, path, batchId, .*, and settings"),
        ({"job": "fleet", "s3.secret_access_key": "hidden"}, "Spark shows options in its log"),
        ({"job": "fleet", "path": "file:///a", "primary": "file:///b"}, "exclude each other"),
        ({"job": "fleet", "batchId": 1, "checkpointId": 1}, "exclude each other"),
        ({"job": "fleet", "savepoint": "a", "checkpointId": 1}, "exclude each other"),
        ({"job": "fleet", "stateVarName": "a", "readRegisteredTimers": "true"}, "exclude each other"),
        ({"job": "fleet", "batchId": -1}, "a whole number from 0"),
        ({"job": "fleet", "partitions": 0}, "a whole number from 1"),
        ({"job": "fleet", "flattenCollectionTypes": "no"}, "true or false"),
        ({"job": "fleet", "keys": "N1"}, "an array of keys in JSON"),
        ({"job": "fleet", "keyGroups": "3:4"}, "the first and the last key group"),
        ({"job": "fleet", "columns": "a,,b"}, "names with commas between"),
        ({"job": "fleet", "ttl": 0}, "a positive number of seconds"),
        ({"job": "fleet", "ttl": "1 day"}, "a positive number of seconds|a number of seconds"),
        ({"job": "fleet", "ttl": 1, "ttlNow": "nan"}, "a number of seconds"),
        ({"job": "fleet", "ttlNow": 1}, "needs ttl"),
        ({"job": "fleet", "readChangeFeed": "true", "ttl": 1}, "does not go with a change feed"),
        ({"job": "fleet", "changeStartBatchId": 1}, "needs readChangeFeed"),
        ({"job": "fleet", "readChangeFeed": "true", "batchId": 1}, "does not go with a change feed"),
        ({"job": "fleet", "readChangeFeed": "true", "keys": '["a"]'}, "does not go with a change feed"),
        (
            {"job": "fleet", "readChangeFeed": "true", "changeStartBatchId": 1, "changeStartCheckpointId": 1},
            "exclude each other",
        ),
        (
            {"job": "fleet", "readChangeFeed": "true", "changeStartBatchId": 1, "changeEndCheckpointId": 2},
            "both by batches, or both by checkpoints",
        ),
        (
            {"job": "fleet", "readChangeFeed": "true", "changeStartBatchId": 2, "changeEndBatchId": 1},
            "ends before it begins",
        ),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], message: str) -> None:
    """With the closest name, or the form that is wanted. No message shows a secret."""
    with pytest.raises(errors.InputError, match=message) as raised:
        asked(**options)
    assert "hidden" not in str(raised.value)


def test_a_feed_fits_a_batch_or_a_stream() -> None:
    """A batch needs a start; a stream has no end and is a feed in any case."""
    feed = {"job": "fleet", "readChangeFeed": "true"}
    assert feed_of_stream(asked(**feed).feed).start is None
    assert feed_of_batch(asked(**feed, changeStartBatchId=3).feed).by_batch
    with pytest.raises(errors.InputError, match="needs changeStartBatchId"):
        feed_of_batch(asked(**feed).feed)
    with pytest.raises(errors.InputError, match="for readStream"):
        feed_of_batch(asked(**feed, changeStartBatchId=3, maxCommitsPerTrigger=1).feed)
    with pytest.raises(errors.InputError, match="has no end"):
        feed_of_stream(asked(**feed, changeEndBatchId=3).feed)
    with pytest.raises(errors.InputError, match="a stream is a change feed"):
        feed_of_stream(asked(job="fleet").feed)


def test_keys_are_json() -> None:
    """With the values that keys can have."""
    assert asked(job="fleet", keys='["7", 7, ["JFK", 7], {"base64": "AP8="}]').keys == ("7", 7, ("JFK", 7), b"\x00\xff")
    assert asked(job="fleet", keyGroups="3-17").key_groups == (3, 17)
    assert asked(job="fleet", keyGroups="3").key_groups == (3, 3)


def test_the_views_of_metadata() -> None:
    """An unknown one is named with the closest; only the view of states is as of a commit."""
    assert metadata_options({"job": "shop"}, JOBS).view == "states"
    with pytest.raises(errors.InputError, match="did you mean 'commits'"):
        metadata_options({"job": "shop", "view": "comits"}, JOBS)
    with pytest.raises(errors.InputError, match="for the view of states alone"):
        metadata_options({"job": "shop", "view": "commits", "batchId": "1"}, JOBS)
    with pytest.raises(errors.InputError, match="there are job, primary, path") as raised:
        metadata_options({"job": "shop", "state": "a"}, JOBS)
    assert "table" not in str(raised.value)
