"""The time zone in which a processor sees the instants of its rows: the session's, in the driver and on executors.

Spark's `toArrow` shows instants in UTC, its `mapInArrow` in the zone of the session. A date, an hour or a text made of
one would differ, and with it keys and sums, as soon as a job moves from one to the other.
"""

import logging
import re
import zoneinfo
from functools import cache
from typing import Any, Final

import pyarrow as pa
from msgspec import UNSET

from statebackend.errors import SettingsError
from statebackend.ids import SourceMark

UTC: Final = "UTC"
UTC_NAMES: Final = frozenset({"UTC", "Etc/UTC", "UCT", "Etc/UCT", "Zulu", "Etc/Zulu", "Universal", "Etc/Universal"}) | {
    *("GMT", "Etc/GMT", "GMT0", "Etc/GMT0", "Greenwich", "Etc/Greenwich", "UT", "Z", "+00:00", "-00:00")
}
"""Zones that are UTC under another name: machines differ in which of them they have as their default."""

_OFFSET: Final = re.compile(r"(?:UTC|GMT|UT)?([+-][0-9]{2}:[0-9]{2})")  # Java puts a name before an offset
_pa: Any = pa  # it ships no types
_logger = logging.getLogger(__name__)


def zone_named(name: str) -> str:
    """The zone by the one name that it has here: equal for equal zones of Spark, as far as names tell."""
    if name in UTC_NAMES:
        return UTC
    offset = _OFFSET.fullmatch(name)
    plain = name if offset is None else offset[1]
    return UTC if plain in UTC_NAMES else plain


def zone_of(delivered: SourceMark) -> str:
    """The zone in which a processor sees a batch."""
    return UTC if delivered.time_zone is UNSET else delivered.time_zone


def in_zone(table: Any, zone: str) -> Any:
    """The rows of a `pyarrow.Table` with all instants in this zone, in records, lists and maps too; not copied.

    Times without a zone stay as they are. Raises `SettingsError` where there are instants, and the zone is one that
    Python does not know: no function of a user could be given them.
    """
    wanted = _pa.schema([_shown(field, zone) for field in table.schema], table.schema.metadata)
    return table if wanted == table.schema else table.cast(wanted)


def check_zone(delivered: SourceMark, newest: SourceMark | None, *, told: str | None) -> None:
    """Raise `SettingsError` unless a job may go on in the zone of the delivered batch.

    `newest`: the newest batch in the state, if there is any. `told`: the zone that the sink was told, if any.
    """
    session = zone_of(delivered)
    committed = None if newest is None or newest.time_zone is UNSET else newest.time_zone
    if told is not None:
        if zone_named(told) != session:
            raise SettingsError(
                "the session has another time zone than the sink was told: set spark.sql.session.timeZone to it",
                session=session,
                time_zone=told,
            )
    elif committed is not None and zone_named(committed) != session:
        raise SettingsError(
            "the state was made in another time zone than that of the session, so dates and hours of the same instants "
            f"would differ from now on: set spark.sql.session.timeZone to {committed!r}; or, if that is meant, give "
            f"the sink time_zone={session!r}",
            session=session,
            committed=committed,
        )
    elif committed is None and newest is not None and session != UTC:
        _logger.warning(
            "from this batch on the job goes by the time zone of the session, %s; its commits so far name none, and an "
            "earlier release showed a processor in the driver its times in UTC: if the state has dates or hours of "
            "UTC, stop the query and set spark.sql.session.timeZone to UTC",
            session,
        )


def _shown(field: Any, zone: str) -> Any:
    return field.with_type(_type_shown(field.type, zone))


def _type_shown(type_: Any, zone: str) -> Any:
    """The type with its instants in this zone. Spark makes no other types of many than these three."""
    types = _pa.types
    if types.is_timestamp(type_):
        return type_ if type_.tz is None else _pa.timestamp(type_.unit, _known(zone))
    if types.is_struct(type_):
        return _pa.struct([_shown(field, zone) for field in type_])
    if types.is_list(type_):
        return _pa.list_(_shown(type_.value_field, zone))
    if types.is_map(type_):
        return _pa.map_(_shown(type_.key_field, zone), _shown(type_.item_field, zone), type_.keys_sorted)
    return type_


@cache
def _known(zone: str) -> str:
    if zone != UTC and _OFFSET.fullmatch(zone) is None:
        try:
            zoneinfo.ZoneInfo(zone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise SettingsError(
                "Python does not know the time zone of the session, so it cannot show times in it: set "
                "spark.sql.session.timeZone to a region such as Europe/Berlin, or to an offset such as +02:00; where "
                "the machine has no time zones at all, install tzdata",
                time_zone=zone,
            ) from error
    return zone
