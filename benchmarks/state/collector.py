"""The cost of a full garbage collection with much state in memory: tables hold what the collector does not walk.

Envelope. A million cells in one dictionary are one untracked object, and a bytearray per key is none at all: nothing to
walk, so they add nothing. A Python list of bytes per key takes the collector through every list and every element. A
map is a dictionary of bytes, which Python 3.14 tracks and the versions before do not; the table around it is tracked,
so the collector visits each map once, and nothing in it: some half of what lists cost.
"""

import gc
from typing import Any

from benchmarks.contest import Line, Report
from benchmarks.state.parts import keys, new_states, seconds

KEYS = 500_000


def run(report: Report) -> None:
    """What each kind adds to a full collection, beside what plain lists of bytes add."""
    each = keys(KEYS)
    bare = {key: [b"1"] * 5 for key in each}
    with_bare = report.contest("a full collection, bare lists", "s", {"collect": _collect}, rounds=9)
    del bare
    without = report.contest("a full collection, nothing", "s", {"collect": _collect}, rounds=9)
    walk_bare = with_bare["collect"].median - without["collect"].median
    for name, fill, limit in (("values", _values, 0.1), ("lists", _lists, 0.1), ("maps", _maps, 0.75)):
        state = fill(each)
        _collect()  # which untracks what can be
        with_ours = report.contest(f"a full collection, {name}", "s", {"collect": _collect}, rounds=9)
        report.add(
            Line(
                f"what {name} of {len(state):,} keys add to a full collection, over what lists of bytes add",
                f"at most {limit:g}x",
                (with_ours["collect"].median - without["collect"].median) / walk_bare,
                "x",
                limit,
                detail=f"seconds: {with_ours['collect']}, with bare lists {with_bare['collect']}, "
                f"with nothing {without['collect']}",
            )
        )
        del state


def _collect() -> float:
    return seconds(gc.collect)


def _lists(each: Any) -> Any:
    hops = new_states().list_state("hops", int)
    hops.put_many(each, [[1] * 5] * KEYS)
    return hops


def _maps(each: Any) -> Any:
    seen = new_states().map_state("seen", int, int)
    seen.put_many(each, [dict.fromkeys(range(5), 1)] * KEYS)
    return seen


def _values(each: Any) -> Any:
    values = new_states().value_state("values", int)
    values.put_many(each, [1] * KEYS)
    return values
