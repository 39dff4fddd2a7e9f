"""Carries the newest batch of each query from commit to commit, so that no edit and no sweep makes a batch new again.

A commit that a sink makes names its batch, `source`. The commits on top of it, by hand or by another query, name that
batch in their `marks`. Pure.
"""

from typing import Final

from statebackend.ids import CommitSummary, SourceMark

QUERIES_MAX: Final = 16
"""Most queries, besides that of the commit itself, whose newest batch is carried. The one idle longest is forgotten.

A job has one query, or a few in turn. But a job that is adopted by a new query each day would grow with its age.
"""


def marks_after(base: CommitSummary | None, source: SourceMark | None) -> tuple[SourceMark, ...] | None:
    """The marks of a commit that continues `base` and is made for the batch `source`, or by hand.

    `None` where an earlier release made `base` and did not say: then the log has to be read for them, as far as it is
    retained. A batch in `base` ends that: what another query did before it is not looked up any more.
    """
    if base is None:
        return ()
    query_id = None if source is None else source.query_id
    latest = () if base.source is None else (base.source,)
    if base.marks is None and all(mark.query_id == query_id for mark in latest):
        return None
    others = [mark for mark in (*(base.marks or ()), *latest) if mark.query_id != query_id]
    return tuple(others[-QUERIES_MAX:])
