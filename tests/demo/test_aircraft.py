"""What is kept of each aircraft, against a case small enough to be worked out by hand."""

from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from benchmarks.demo.aircraft import Aircraft
from benchmarks.demo.aircraft import fly as fly_values
from benchmarks.demo.columns import COLUMNS, KEY, fly_columns
from benchmarks.demo.flights import SCHEMA
from statebackend import Key
from tests.columns.states import columnar

DAY = date(2013, 1, 1)


def at(hour: int, minute: int = 0) -> datetime:
    return datetime(2013, 1, 1, hour, minute)  # noqa: DTZ001 (local times, as the data has them)


def a_flight(tail_number: str | None, origin: str, destination: str, **changed: Any) -> dict[str, Any]:
    flight = {
        "day": DAY,
        "tailnum": tail_number,
        "carrier": "UA",
        "flight": 1,
        "origin": origin,
        "dest": destination,
        "departed": at(8),
        "arrived": at(10),
        "delay_minutes": 0,
    }
    return flight | changed


def a_day(*flights: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(flights), schema=SCHEMA)


def fly_in_columns(flights: pa.Table, fleet: dict[Key, Aircraft]) -> None:
    """Fly a day with the fleet in columns, and back."""
    state = columnar(COLUMNS, KEY)
    for tail_number, aircraft in fleet.items():
        state[tail_number] = msgspec.structs.asdict(aircraft)
    fly_columns(flights, state)
    fleet.update({tail_number: Aircraft(**row) for tail_number, row in state.items()})


@pytest.fixture(params=[fly_values, fly_in_columns], ids=["values", "columns"])
def fly(request: pytest.FixtureRequest) -> Callable[[pa.Table, dict[Key, Aircraft]], None]:
    """Each kind of state."""
    return request.param


def test_first_flight_is_no_jump(fly) -> None:
    """An aircraft that was never seen comes from nowhere."""
    fleet: dict[Key, Aircraft] = {}
    fly(a_day(a_flight("N1", "EWR", "IAH", delay_minutes=7)), fleet)
    assert fleet == {"N1": Aircraft("IAH", at(10), flights=1, delay_minutes=7, jumps=0)}


def test_jump_is_a_departure_from_elsewhere_than_the_last_arrival(fly) -> None:
    """Of three flights, the second leaves where the first arrived and the third does not."""
    fleet: dict[Key, Aircraft] = {}
    fly(a_day(a_flight("N1", "EWR", "IAH")), fleet)
    fly(a_day(a_flight("N1", "IAH", "JFK", departed=at(11), arrived=at(14))), fleet)
    fly(a_day(a_flight("N1", "LGA", "ORD", departed=at(15), arrived=at(17))), fleet)
    assert fleet == {"N1": Aircraft("ORD", at(17), flights=3, delay_minutes=0, jumps=1)}


def test_order_of_rows_does_not_matter(fly) -> None:
    """A replayed batch may deliver its rows in another order; the aircraft flew in one order only."""
    flights = [
        a_flight("N1", "EWR", "IAH", departed=at(6), arrived=at(9)),
        a_flight("N1", "IAH", "EWR", departed=at(10), arrived=at(13)),
        a_flight("N1", "JFK", "BOS", departed=at(15), arrived=at(16)),
        a_flight("N2", "EWR", "ORD", departed=at(7), arrived=at(9)),
    ]
    forwards: dict[Key, Aircraft] = {}
    backwards: dict[Key, Aircraft] = {}
    fly(a_day(*flights), forwards)
    fly(a_day(*reversed(flights)), backwards)
    assert forwards == backwards
    assert forwards["N1"] == Aircraft("BOS", at(16), flights=3, delay_minutes=0, jumps=1)


@pytest.mark.parametrize(
    "flight",
    [
        pytest.param(a_flight(None, "EWR", "IAH"), id="without tail number"),
        pytest.param(a_flight("N1", "EWR", "IAH", departed=None, arrived=None, delay_minutes=None), id="cancelled"),
    ],
)
def test_what_did_not_fly_or_is_unknown_changes_nothing(fly, flight: dict[str, Any]) -> None:
    """Such a row leaves the fleet as it is."""
    before = Aircraft("ORD", at(1), flights=3, delay_minutes=5, jumps=1)
    fleet: dict[Key, Aircraft] = {"N1": before}
    fly(a_day(flight), fleet)
    assert fleet == {"N1": before}


def test_early_departure_does_not_make_up_for_delay(fly) -> None:
    """Only minutes late count; a diverted flight has a destination but no arrival time."""
    fleet: dict[Key, Aircraft] = {}
    fly(a_day(a_flight("N1", "EWR", "IAH", delay_minutes=9)), fleet)
    fly(a_day(a_flight("N1", "IAH", "EWR", delay_minutes=-5, arrived=None)), fleet)
    assert fleet == {"N1": Aircraft("EWR", None, flights=2, delay_minutes=9, jumps=0)}
