"""The state of each aircraft, and how a day of flights changes it: the user's code of the demo."""

from collections.abc import MutableMapping
from datetime import datetime
from typing import Any

import msgspec

import statebackend as sb
from benchmarks.demo.flights import ORDER
from statebackend import Key

STATE_NAME = "fleet"


class Aircraft(msgspec.Struct, frozen=True):
    """Everything the stream knows of one tail number. Times are local; `last_arrival` is unknown after a diversion.

    A jump is a departure from another airport than the one last arrived at. (The data holds only flights *from*
    New York, so an aircraft always comes back unseen, and each flight but its first is a jump.)
    """

    last_airport: str
    last_arrival: datetime | None
    flights: int
    delay_minutes: int
    jumps: int


def fly(flights: Any, fleet: MutableMapping[Key, Aircraft]) -> None:
    """Update `fleet` with one day, an Arrow table of `flights.SCHEMA` in any order.

    Cancelled flights, and those of an unknown aircraft, change nothing. The order of the rows does not matter.
    """
    in_order = flights.sort_by([(column, "ascending") for column in ORDER])
    columns = (in_order.column(name).to_pylist() for name in _USED)
    for tail_number, origin, destination, departed, arrived, delay_minutes in zip(*columns, strict=True):
        if tail_number is None or departed is None:
            continue
        fleet[tail_number] = after(fleet.get(tail_number), origin, destination, arrived, max(delay_minutes, 0))


class Fleet(sb.spark.KeyedProcessor):
    """The same on executors: each task flies the aircraft in its range."""

    def open(self, context: sb.spark.ProcessorContext) -> None:
        """Declare one state, by tail number."""
        self.fleet = context.value_state(STATE_NAME, Aircraft)

    def process_table(self, table: Any, context: sb.spark.ProcessorContext) -> None:
        """Fly one day of the range."""
        fly(table, self.fleet)


_USED = ("tailnum", "origin", "dest", "departed", "arrived", "delay_minutes")


def after(
    before: Aircraft | None, origin: str, destination: str, arrived: datetime | None, delay_minutes: int
) -> Aircraft:
    """The aircraft after one more flight."""
    if before is None:
        return Aircraft(destination, arrived, flights=1, delay_minutes=delay_minutes, jumps=0)
    return Aircraft(
        destination,
        arrived,
        flights=before.flights + 1,
        delay_minutes=before.delay_minutes + delay_minutes,
        jumps=before.jumps + (before.last_airport != origin),
    )
