"""The options of a query, checked: each by its name, whatever its case, and against the others. Pure."""

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

import msgspec

from statebackend._codec.plain import key_of_shown
from statebackend._reading.what_to_read import WhatToRead
from statebackend._state.time.ttl import TimeToLive
from statebackend._state.values import Upcast
from statebackend.errors import InputError
from statebackend.ids import Key
from statebackend.settings import Settings
from statebackend.settings.credentials import Secret
from statebackend.settings.sources import dotted_names

T = TypeVar("T")

PLACES: Final = ("job", "primary", "path")
AS_OF: Final = ("batchId", "checkpointId", "savepoint", "at")
STATE: Final = (
    *("stateVarName", "readRegisteredTimers", "flattenCollectionTypes", "keys", "keyGroups", "columns"),
    *("keyColumns", "keysAsJson", "partitions", "pushFilters", "ttl", "ttlNow"),
)
FEED: Final = (
    *("readChangeFeed", "changeStartBatchId", "changeEndBatchId", "changeStartCheckpointId", "changeEndCheckpointId"),
    *("oldValues", "maxCommitsPerTrigger"),
)


class FeedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The commits with which a feed begins and ends, both included, by batches or by checkpoints."""

    start: int | None
    end: int | None
    by_batch: bool
    old_values: bool
    commits_max: int | None


class StateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one state that a query asks for. `feed`: `None` for the state itself."""

    settings: Settings
    state: str | None
    timers: bool
    flatten: bool
    batch_id: int | None
    checkpoint_id: int | None
    savepoint: str | None
    at: str | None
    keys: tuple[Key, ...] | None
    key_groups: tuple[int, int] | None
    columns: tuple[str, ...] | None
    key_columns: tuple[str, ...] | None
    keys_as_json: bool
    partitions: int | None
    push_filters: bool
    ttl_s: float | None
    ttl_now_s: float | None
    feed: FeedOptions | None

    @property
    def ttl(self) -> TimeToLive | None:
        """By which values are left out: as of a fixed time, or of the clock in the commit."""
        if self.ttl_s is None:
            return None
        now_s = self.ttl_now_s
        return TimeToLive(self.ttl_s, None if now_s is None else lambda: now_s)

    def what(self, migrate: Sequence[Upcast]) -> WhatToRead:
        """The same by the keywords of `read_state`."""
        return {
            "key_groups": self.key_groups,
            "keys": self.keys,
            "columns": self.columns,
            "checkpoint_id": self.checkpoint_id,
            "savepoint": self.savepoint,
            "at": self.at,
            "ttl": self.ttl,
            "migrate": migrate,
            "key_as_json": self.keys_as_json,
        }


def state_options(options: Mapping[str, str], jobs: Mapping[str, Settings]) -> StateOptions:
    """Check the options of `statebackend`. `jobs`: the registered settings, by job. Raises `InputError`."""
    asked = _GivenOptions(options, (*PLACES, *AS_OF, *STATE, *FEED))
    asked.refuse_both(*AS_OF)
    asked.refuse_both("stateVarName", "readRegisteredTimers")
    is_feed = asked.flag("readChangeFeed", default=False)
    for name in (*AS_OF, "keys", "keyGroups", "pushFilters", "ttl", "ttlNow") if is_feed else FEED[1:]:
        if name in asked:
            wrong = "does not go with a change feed" if is_feed else "needs readChangeFeed"
            raise InputError(f"the option {wrong}", option=name)
    if "ttlNow" in asked and "ttl" not in asked:
        raise InputError("the option needs ttl", option="ttlNow")
    return StateOptions(
        settings=_settings(asked, jobs),
        state=asked.text("stateVarName"),
        timers=asked.flag("readRegisteredTimers", default=False),
        flatten=asked.flag("flattenCollectionTypes", default=True),
        batch_id=asked.number("batchId"),
        checkpoint_id=asked.number("checkpointId"),
        savepoint=asked.text("savepoint"),
        at=asked.text("at"),
        keys=asked.made("keys", _keys),
        key_groups=asked.made("keyGroups", _key_groups),
        columns=asked.made("columns", _names),
        key_columns=asked.made("keyColumns", _names),
        keys_as_json=asked.flag("keysAsJson", default=False),
        partitions=asked.number("partitions", least=1),
        push_filters=asked.flag("pushFilters", default=False),
        ttl_s=asked.made("ttl", _ttl_seconds),
        ttl_now_s=asked.made("ttlNow", _seconds),
        feed=_feed(asked) if is_feed else None,
    )


def _feed(asked: "_GivenOptions") -> FeedOptions:
    asked.refuse_both("changeStartBatchId", "changeStartCheckpointId")
    asked.refuse_both("changeEndBatchId", "changeEndCheckpointId")
    by_batch = "changeStartCheckpointId" not in asked
    if ("changeEndCheckpointId" if by_batch else "changeEndBatchId") in asked:
        raise InputError("begin and end a feed both by batches, or both by checkpoints")
    start = asked.number("changeStartBatchId" if by_batch else "changeStartCheckpointId")
    end = asked.number("changeEndBatchId" if by_batch else "changeEndCheckpointId")
    if start is not None and end is not None and end < start:
        raise InputError("the feed ends before it begins", start=start, end=end)
    return FeedOptions(
        start=start,
        end=end,
        by_batch=by_batch,
        old_values=asked.flag("oldValues", default=False),
        commits_max=asked.number("maxCommitsPerTrigger", least=1),
    )


def feed_of_batch(feed: FeedOptions) -> FeedOptions:
    """The feed of `spark.read`. Raises `InputError` for options of a stream."""
    if feed.start is None:
        raise InputError("a change feed needs changeStartBatchId, or changeStartCheckpointId")
    if feed.commits_max is not None:
        raise InputError("the option is for readStream", option="maxCommitsPerTrigger")
    return feed


def feed_of_stream(feed: FeedOptions | None) -> FeedOptions:
    """The feed of `spark.readStream`. Raises `InputError` for a stream of anything else, or with an end."""
    if feed is None:
        raise InputError("a stream is a change feed: option('readChangeFeed', True)")
    if feed.end is not None:
        raise InputError("a stream has no end: leave the option out, or use spark.read", end=feed.end)
    return feed


class MetadataOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The view that a query asks for of `statebackend-metadata`, as of a commit."""

    settings: Settings
    view: str
    batch_id: int | None
    checkpoint_id: int | None
    savepoint: str | None
    at: str | None


VIEWS: Final = ("states", "commits", "savepoints")


def metadata_options(options: Mapping[str, str], jobs: Mapping[str, Settings]) -> MetadataOptions:
    """Check the options of `statebackend-metadata`. Raises `InputError`."""
    asked = _GivenOptions(options, (*PLACES, *AS_OF, "view"))
    asked.refuse_both(*AS_OF)
    view = asked.text("view") or VIEWS[0]
    if view not in VIEWS:
        raise InputError(f"there is no such view: there are {', '.join(VIEWS)}{_closest(view, VIEWS)}", view=view)
    if view != VIEWS[0] and (unfit := [name for name in AS_OF if name in asked]):
        raise InputError("the option is for the view of states alone", option=unfit[0])
    return MetadataOptions(
        settings=_settings(asked, jobs),
        view=view,
        batch_id=asked.number("batchId"),
        checkpoint_id=asked.number("checkpointId"),
        savepoint=asked.text("savepoint"),
        at=asked.text("at"),
    )


class _GivenOptions:
    """The options by their names, and what they say."""

    def __init__(self, options: Mapping[str, str], names: tuple[str, ...]) -> None:
        spelt = {name.lower(): name for name in (*names, *dotted_names(Settings))}
        self._values: dict[str, str] = {}
        for name, value in options.items():
            if name.lower() not in spelt:
                meant = _option_meant(name.lower(), names)
                hint = f"did you mean {meant!r}?" if meant else f"there are {', '.join(names)}, and settings"
                raise InputError(f"there is no option of that name; {hint}", option=name)
            self._values[spelt[name.lower()]] = value
        self.settings = {name: value for name, value in self._values.items() if name in dotted_names(Settings)}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def refuse_both(self, *names: str) -> None:
        """Raise if more than one of these is given."""
        if len(given := [name for name in names if name in self]) > 1:
            raise InputError("these options exclude each other: give one of them", options=given)

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def made(self, name: str, make: Callable[[str], T]) -> T | None:
        """The text of an option as `make` takes it, `None` if it is not given."""
        if (text := self.text(name)) is None:
            return None
        try:
            return make(text)
        except ValueError as error:
            raise InputError(f"the option has another form: {error}", option=name, value=text) from None

    def number(self, name: str, least: int = 0) -> int | None:
        def number(text: str) -> int:
            if not text.isascii() or not text.isdecimal() or int(text) < least:
                raise ValueError(f"a whole number from {least}")
            return int(text)

        return self.made(name, number)

    def flag(self, name: str, *, default: bool) -> bool:
        def flag(text: str) -> bool:
            if text.lower() not in {"true", "false"}:
                raise ValueError("true or false")
            return text.lower() == "true"

        found = self.made(name, flag)
        return default if found is None else found


def _settings(asked: _GivenOptions, jobs: Mapping[str, Settings]) -> Settings:
    """The registered settings of the job, with those that are options."""
    given = dict(asked.settings)
    if (path := asked.text("path")) is not None:
        asked.refuse_both("path", "primary")
        given["primary"] = path
    job = given.get("job") or (next(iter(jobs)) if len(jobs) == 1 and "primary" not in given else None)
    if job is None:
        raise InputError("name the job: option('job', ...)", registered=sorted(jobs))
    if secret := [name for name in given if _is_secret(name)]:
        raise InputError("Spark shows options in its log: register the job with its settings instead", option=secret[0])
    base = jobs.get(job)
    if base is None and "primary" not in given:
        hint = _closest(job, tuple(jobs)) or "; there is none"
        raise InputError(f"no job of that name is registered{hint}; or give option('primary', ...)", job=job)
    values: dict[str, Any] = {} if base is None else {name: attrgetter(name)(base) for name in dotted_names(Settings)}
    return Settings.from_mapping({**values, **given, "job": job})


def _is_secret(name: str) -> bool:
    record, _, field = name.partition(".")
    types = {each.name: each.type for each in msgspec.structs.fields(Settings)}
    inner = {each.name: each.type for each in msgspec.structs.fields(types[record])} if field else types
    return Secret in getattr(inner[field or record], "__args__", (inner[field or record],))


def _keys(text: str) -> tuple[Key, ...]:
    """Keys as an array in JSON: a string, a number, an array or object for a tuple, `{"base64": ...}` for bytes."""
    try:
        found = msgspec.json.decode(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not found:
        raise ValueError('an array of keys in JSON, as ["N14228", "N24211"]')
    return tuple(map(key_of_shown, cast("list[Any]", found)))


def _key_groups(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    if not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
        raise ValueError("the first and the last key group, as 0-31, or one")
    return int(first), int(last if dash else first)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise ValueError("a number of seconds")
    return found


def _ttl_seconds(text: str) -> float:
    if (found := _seconds(text)) <= 0:
        raise ValueError("a positive number of seconds")
    return found


def _names(text: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in text.split(","))
    if not all(found):
        raise ValueError("names with commas between")
    return found


def _option_meant(name: str, options: Sequence[str]) -> str | None:
    """The option that is most likely meant: a misspelt one, or one with the word in it, and only then a setting."""
    own = {each.lower(): each for each in options}
    if found := difflib.get_close_matches(name, own, n=1, cutoff=0.75):
        return own[found[0]]
    if within := [each for lower, each in own.items() if name in lower]:
        return within[0]
    return next(iter(difflib.get_close_matches(name, dotted_names(Settings), n=1, cutoff=0.75)), None)


def _closest(name: str, known: tuple[str, ...]) -> str:
    closest = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {closest[0]!r}?" if closest else ""
