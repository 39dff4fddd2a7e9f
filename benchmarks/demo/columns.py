"""The same state in columns, a day at a time: the demo's user code with `--state columns`."""

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

import statebackend as sb
from benchmarks.demo.aircraft import STATE_NAME
from benchmarks.demo.flights import ORDER

KEY: Final = pa.string()
COLUMNS: Final = pa.schema(
    [
        pa.field("last_airport", pa.string()),
        pa.field("last_arrival", pa.timestamp("us")),
        pa.field("flights", pa.int64()),
        pa.field("delay_minutes", pa.int64()),
        pa.field("jumps", pa.int64()),
    ]
)
"""The fields of `Aircraft`."""
HOW: Final[dict[str | tuple[str, ...], Any]] = {
    "last_airport": ("last", "dest"),
    "last_arrival": ("last", "arrived"),
    "flights": "count",
    "delay_minutes": ("sum", "late_minutes"),
    "jumps": ("sum", "jumped"),
}
"""The columns after a day, given its flights in order."""


def fly_columns(flights: Any, fleet: sb.ColumnarState) -> None:
    """Update `fleet` with one day, as `aircraft.fly` does, without a Python object per flight."""
    flown = flights.filter(pc.and_(pc.is_valid(flights["tailnum"]), pc.is_valid(flights["departed"])))
    if flown.num_rows == 0:
        return
    flown = flown.sort_by([(column, "ascending") for column in ("tailnum", *ORDER)]).combine_chunks()
    tailnum, dest = (flown[name].combine_chunks() for name in ("tailnum", "dest"))
    is_first = pa.concat_arrays([pa.array([True]), pc.not_equal(tailnum[1:], tailnum[:-1])])
    came_from = pa.concat_arrays([pa.nulls(1, dest.type), dest[:-1]])
    before_today = fleet.rows(tailnum.filter(is_first)).gather(["last_airport"])["last_airport"]
    came_from = pc.replace_with_mask(came_from, is_first, before_today)
    jumped = pc.fill_null(pc.not_equal(came_from, flown["origin"]), fill_value=False)
    flown = flown.append_column("jumped", pc.cast(jumped, "int64"))
    flown = flown.append_column("late_minutes", pc.max_element_wise(flown["delay_minutes"], 0))
    fleet.merge(flown, on="tailnum", how=HOW)


class FleetInColumns(sb.spark.KeyedProcessor):
    """The same on executors."""

    def open(self, context: sb.spark.ProcessorContext) -> None:
        """Declare one state, by tail number."""
        self.fleet = context.columnar_state(STATE_NAME, COLUMNS, key=KEY)

    def process_table(self, table: Any, context: sb.spark.ProcessorContext) -> None:
        """Fly one day of the range."""
        fly_columns(table, self.fleet)
