"""A stream of the change feed that takes so many commits at a time. Needs Spark 4.2, which asks for it."""

from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles, SupportsTriggerAvailableNow

from statebackend.spark.reading.positions import last_offset
from statebackend.spark.reading.readers import SEQUENCE, FeedStream, run


class AdmittingStream(FeedStream, SupportsTriggerAvailableNow):
    """A `FeedStream` with `maxCommitsPerTrigger`; with `availableNow` it ends at the commit that is newest now."""

    _end: int | None = None

    def getDefaultReadLimit(self) -> Any:  # noqa: N802  # Spark's name
        """A commit counts as a file."""
        commits_max = self._feed.commits_max
        return ReadAllAvailable() if commits_max is None else ReadMaxFiles(commits_max)

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        """The last commit within the limit. Raises `CheckpointNotFoundError`, `RewindError`."""
        commits_max = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        found = run(last_offset, self._plan.options, start[SEQUENCE], commits_max)
        return {SEQUENCE: found if self._end is None else max(start[SEQUENCE], min(found, self._end))}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """The newest commit."""
        newest = run(last_offset, self._plan.options, self._newest)
        self._newest = newest
        return {SEQUENCE: newest}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        """Note which commit is the newest."""
        self._end = run(last_offset, self._plan.options)
