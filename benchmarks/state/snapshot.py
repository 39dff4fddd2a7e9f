"""How long a snapshot of a million keys holds up a checkpoint, and the cost of reading it later.

Envelope. The synchronous part copies one dictionary: as long as `dict.copy`, some 10 ms. Reading it hashes
every key (0.3 µs), makes a change of it (0.3 µs) and puts both in order: 1.5 µs a key at most, in a worker thread.
"""

from benchmarks.contest import Line, Report, ratio
from benchmarks.state.parts import KEYS_TOTAL, keys, legs, new_states, seconds

GROUPS = frozenset(range(128))


def run(report: Report) -> None:
    """The ratio of the synchronous part to a bare copy, and CPU per key of the rest."""
    states = new_states()
    each = keys()
    states.value_state("legs", type(legs(1)[0])).put_many(each, legs())
    table = dict.fromkeys(each, b"")
    samples = report.contest(
        "a snapshot", "s", {"snapshot": lambda: seconds(states.snapshot), "copy": lambda: seconds(table.copy)}
    )
    overhead = ratio(samples["snapshot"], samples["copy"])
    report.add(
        Line(
            "snapshot of 1,000,000 keys, over `dict.copy` of as many",
            "at most 2x",
            overhead.median,
            "x",
            2.0,
            detail=f"seconds: {samples['snapshot']}",
        )
    )
    read = report.contest(
        "reading a snapshot",
        "s",
        {"changes": lambda: seconds(lambda: sum(1 for _ in states.snapshot().changes(GROUPS)))},
    )
    per_key_us = read["changes"].median / KEYS_TOTAL * 1e6
    report.add(Line("reading all of its changes, CPU per key", "at most 1.5 µs", per_key_us, "µs", 1.5))
