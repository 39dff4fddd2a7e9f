"""Reads how far a query has come from the two logs in Spark's checkpoint, and decides if its state can be taken over.

metadata      {"id": "..."}                               the query
offsets/<N>   v1, then the batch's times and settings     batch N was begun
commits/<N>   v1 or v2, then the next watermark           batch N is done
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from statebackend.errors import InputError
from statebackend.ids import ClockKind

OFFSET_VERSIONS: Final = ("v1",)
COMMIT_VERSIONS: Final = ("v1", "v2")
FORMAT_VERSION: Final = "spark.sql.streaming.stateStore.checkpointFormatVersion"
PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
STORE_SETTINGS: Final = (
    PROVIDER,
    "spark.sql.streaming.stateStore.encodingFormat",
    FORMAT_VERSION,
    "spark.sql.streaming.stateStore.rowChecksum.enabled",
)
"""The settings of the query that its state is read with."""
_SPARKS_OWN: Final = "org.apache.spark.sql.execution.streaming.state."


class QueryLog(msgspec.Struct, frozen=True):
    """A query between two batches. `settings`: those that its state is read with; times in milliseconds."""

    query_id: str
    batch_id: int
    batch_timestamp_ms: int
    watermark_ms: int
    settings: Mapping[str, str]

    def time_ms(self, clock: ClockKind) -> int:
        """Where a clock of this kind stands after the batch."""
        return self.watermark_ms if clock == "event" else self.batch_timestamp_ms


def query_log(metadata: str, offsets: Mapping[str, str], commits: Mapping[str, str]) -> QueryLog:
    """The query of these files, by their names. Pure.

    Raises `InputError` if it is amid a batch, if there is none, and for a format that is not known.
    """
    begun, done = _newest(offsets), _newest(commits)
    if done is None:
        raise InputError("the checkpoint has no committed batch: it has no state yet", begun=begun)
    if begun != done:
        raise InputError(
            "the newest batch is not committed, so the state may have a part of it: start the query once more and let "
            "it finish, with trigger(availableNow=True)",
            begun=begun,
            committed=done,
        )
    offset_version, head, *_ = _lines(offsets[str(done)], ("offsets", done), OFFSET_VERSIONS)
    commit_version, committed, *_ = _lines(commits[str(done)], ("commits", done), COMMIT_VERSIONS)
    try:
        batch, end = msgspec.json.decode(head), msgspec.json.decode(committed)
        found: dict[str, str] = batch["conf"]
        settings: dict[str, str] = {name: found[name] for name in STORE_SETTINGS if name in found}
        if commit_version == "v2":
            settings[FORMAT_VERSION] = "2"
        log = QueryLog(
            msgspec.json.decode(metadata)["id"],
            done,
            int(batch["batchTimestampMs"]),
            int(end.get("nextBatchWatermarkMs", 0)),
            settings,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"a log of the checkpoint is of a form that is not known: {error!r}", version=offset_version
        ) from error
    provider = settings.get(PROVIDER, _SPARKS_OWN)
    if not provider.startswith(_SPARKS_OWN):
        raise InputError("the state lies in a store that Spark does not have itself", provider=provider)
    return log


def _newest(names: Mapping[str, str]) -> int | None:
    return max((int(name) for name in names if name.isdigit()), default=None)


def _lines(text: str, place: tuple[str, int], known: Sequence[str]) -> list[str]:
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] not in known:
        raise InputError(
            "a log of the checkpoint is of a version that is not known: upgrade, or read the state with the Spark that "
            "wrote it, and seed the job with the rows",
            log=place[0],
            batch_id=place[1],
            version=lines[0][:20] if lines else "",
            known=known,
        )
    return lines
