"""Mends that are taken back, one at a time: after how many drawn programs is each found?

Whatever a program finds counts, so none of these is for a named invariant. A mend that is not here is not one line, or
is of what programs do not draw.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from tests.mutants.planting import Mutant

FIRST: Final = 70_000
"""Seeds from here on have everything that is drawn, and no record has them."""
_Mend = partial(Mutant, invariant="a program", first=FIRST, tries=2_000, hunter="programs")

TAKEN_BACK: Final[Sequence[Mutant]] = (
    # ------------------------------------------------------------------------------------- a slip looks like success
    _Mend(
        "another frame of a batch is skipped as a replay",
        "statebackend.spark.given_batch",
        "            if not _is_same(df, self._frame):",
        "            if False:",
    ),
    _Mend(
        "the newest batch of a query is forgotten under edits by hand",
        "statebackend._log.marks",
        "return tuple(others[-QUERIES_MAX:])",
        "return ()",
    ),
    _Mend(
        "a rollback undoes edits by hand",
        "statebackend.spark.replay",
        "            if edit is not None:",
        "            if False:",
        needs=("beside: edit x or beside: heir", "beside: rewind", "on_rewind: rollback"),
    ),
    _Mend(
        "the old line of a stream goes on upon a branch",
        "statebackend.spark.replay",
        'if delivered.batch_id == following or first_batch_id in ("any", delivered.batch_id):',
        'if delivered.batch_id == following or own is not None or first_batch_id in ("any", delivered.batch_id):',
    ),
    _Mend(
        "another query goes on with the state unasked",
        "statebackend.spark.replay",
        "if newest is not None and newest.query_id != delivered.query_id and adopt not in (True, newest.query_id):",
        "if False:",
    ),
    _Mend(
        "timers without a clock stand still",
        "statebackend._processing.clockless",
        'if event_time is None and clock is None and overrides(processor, "on_timer"):',
        "if False:",
        needs=("slip: timers without a clock", "clock: none"),
    ),
    _Mend(
        "a clock that was forgotten at a restart stands still",
        "statebackend._processing.clockless",
        "    if committed is None:",
        "    if True:",
    ),
    _Mend(
        "of two columns of one name a row has the last",
        "statebackend._processing.column_names",
        "    if twice := twice_in(names):",
        "    if False:",
    ),
    _Mend(
        "a null key is dropped while all rows are late",
        "statebackend._processing.runner",
        "        if table.num_rows:  # without rows, the types may be nobody's",
        "        if False:",
        needs=("slip: null key", "clock: event"),
    ),
    _Mend(
        "rows of a function without an output are lost",
        "statebackend._processing.runner",
        'raise InputError("the processor yields rows and the sink has no output: give the sink one", key=key)',
        "return",
        needs=("slip: no output",),
    ),
    _Mend(
        "an expired value of a sink without a clock never expires",
        "statebackend._state.time.job_clock",
        '            self.check_there_is_one("give the time-to-live a function `now`")',
        "            pass",
    ),
    # ----------------------------------------------------------------------------- readers of what writers may write
    _Mend(
        "broadcast state is read once for each owner",
        "statebackend._state.kinds.operator_state",
        "    return [redistribute(list(islice(reports, len(parts))), modes, 1)[0] for parts in together]",
        "    found = [list(islice(reports, len(parts))) for parts in together]\n"
        "    return [{each: sum((part.get(each, ()) for part in parts), ()) for each in modes} for parts in found]",
    ),
    _Mend(
        "bases in RocksDB of several owners cannot be read",
        "statebackend._checkpoint.rocksdb_restore",
        '            directory = scratch / "opened"',
        '            directory = scratch / "opened"\n            assert vars(self).setdefault("_only", base) is base',
    ),
    _Mend(
        "a map with none among its names cannot be read",
        "statebackend._reading.rows.shapes",
        "self._is_map = not (key.may_be_none or _has_map(key.arrow))",
        "self._is_map = True",
    ),
    _Mend(
        "old values of a feed are read as their own commit has them",
        "statebackend._reading.feed",
        "            layout, open_merge = layout_and_merge(parent, self._state, asked)",
        "            layout, open_merge = layout_and_merge(parent, state_in(parent, self._state.name), asked)",
        needs=("look at feed", "type: leg or column"),
    ),
    _Mend(
        "a difference reads each commit as it has the state itself",
        "statebackend._reading.differences",
        "    if can_read(after, before):",
        "    if False:",
        needs=("look at differences", "type: leg or column"),
    ),
    _Mend(
        "of names that Python takes for equal a map has one",
        "statebackend._state.kinds.map_state",
        "        if len(found) < len(entries):",
        "        if False:",
    ),
    _Mend(
        "a time-to-live cannot be read before the job's first time",
        "statebackend._reading.what_to_read",
        "None if commit.clock is None else commit.clock.now_s",
        "commit.clock.now_s",
    ),
    _Mend(
        "the feed of an emptied state cannot be planned",
        "statebackend.spark.reading.positions",
        "type_ = None if options.feed is None else await _key_type_of_changes(options, options.feed, name, migrate)",
        "type_ = None",
        needs=("look at feed", "keys: tuple or keys: int or keys: bytes"),
    ),
    _Mend(
        "local copies of another run are called damaged",
        "statebackend._local.rocksdb_copies",
        "        return file not in found.rocksdb",
        "        return False",
        needs=("beside: putback", "table: rocksdb"),
    ),
    _Mend(
        "a history is silent about what a commit made as a whole",
        "statebackend._reading.histories",
        "return isinstance(added_by(parent, [commit], self._group_in(commit)), str)",
        "return False",
        needs=("look at history",),
    ),
    # ------------------------------------------------------------------------------- an answer depends on where or when
    _Mend(
        "the driver shows times in UTC",
        "statebackend.spark.driver",
        "        table = in_zone(table, zone_of(delivered))",
        "        table = in_zone(table, 'UTC')",
    ),
    _Mend(
        "a start in another zone goes on in silence",
        "statebackend._processing.time_zones",
        "    elif committed is not None and zone_named(committed) != session:",
        "    elif False:",
    ),
    _Mend(
        "a deleted timer fires",
        "statebackend._state.time.timers",
        """        self._passed_over.add(heapq.heappop(self._queued()))

    def _look_again(self) -> None:
        queue = self._queued()
        for passed_over in self._passed_over:
            heapq.heappush(queue, passed_over)
        self._passed_over.clear()
""",
        """        queued = heapq.heappop(self._queued())
        self._delete(_key_of(queued), queued[0])
        self._passed_over.add(queued)

    def _look_again(self) -> None:
        passed_over, self._passed_over = self._passed_over, set()
        for each in passed_over:
            self._register(_key_of(each), each[0])
        self._queued()
""",
    ),
    _Mend(
        "a range that is opened later has no copy of broadcast state",
        "statebackend._ranges.contribution",
        "    if base is None or base.epoch != epoch:",
        "    if True:",
    ),
    # ------------------------------------------------------------------------------------ once not drawn, or too seldom
    _Mend(
        "rows that are merged over runs are in no order",
        "statebackend._runs.merged_streams",
        "    places = places_in_order(orders_of(hashes, groups), hashes)\n    is_hidden",
        "    places = np.arange(len(hashes))\n    is_hidden",
        needs=("table: runs or state_memory_bytes", "kind: columns"),
    ),
    # ------------------------------------------------------------------------------------------ found by programs alone
    _Mend(
        "output to be published keeps the commit that has erased keys",
        "statebackend._upkeep.offline.offline_commit",
        "await coordinator.outbox.leave(contents.left)",
        "pass",
        needs=("erase", "outbox"),
    ),
    _Mend(
        "a follower reads no time-to-live before the job has a time",
        "statebackend._following.followed_state",
        "states.clock.is_only_read = True",
        "pass",
        needs=("beside: follow or taken over", "ttl: ", "clock: event", "rows: 0"),
    ),
    _Mend(
        "a follower's columns need the time-to-live that the job has",
        "statebackend._following.states",
        "for kept in (ttl,) if before is None or ttl is None else (ttl, None):",
        "for kept in (ttl,):",
        needs=("beside: follow or taken over", "kind: columns", "ttl: "),
    ),
)
