"""Does the stream begin where the state of a seed ends? Decided from three answers, the sink's, the seed's and Spark's.

    in the commit   told to the sink   Spark's own                  outcome
    a start         the same           the same, or says nothing    the first batch is processed
    a start         nothing            the same                     as well: Spark says it for Kafka, and others like it
    a start         anything else, or Spark's own differs           `StateGoneError`
    none            a start            whatever                     `StateGoneError`: it is another state than that

Only before the first batch: afterwards the batch in the state says where the next one begins.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from statebackend.errors import SettingsError, StateGoneError


def as_told(starts_from: Any) -> Any:
    """The argument of the sink as a commit would have it. Raises `SettingsError` for what JSON has no place for."""
    try:
        return msgspec.json.decode(msgspec.json.encode(starts_from))
    except (TypeError, ValueError, RecursionError) as error:
        raise SettingsError("starts_from must be what JSON has", starts_from=repr(starts_from)[:80]) from error


def check_start(seeded: Any, told: Any, sources: Iterable[Any]) -> None:
    """Raise `StateGoneError` unless the stream begins where the state ends. Pure.

    `seeded`: the start in the newest commit; `told`: that of the sink; `sources`: the offsets at which the sources of
    the query begin, as far as Spark says them. `None` for none. Offsets of a source are compared if they are of the
    seed's own names, as those of Kafka's topics are.
    """
    if told is not None and told != seeded:
        raise _differs("the sink is told another start than the state has", seeded, told)
    if seeded is None:
        return
    named: Mapping[str, Any] = cast("Mapping[str, Any]", seeded) if isinstance(seeded, Mapping) else {}
    found: dict[str, Any] = {}
    for source in sources:
        if isinstance(source, Mapping) and set(own := cast("Mapping[str, Any]", source)) <= named.keys():
            found |= own
    if any(found[name] != named[name] for name in found):
        raise _differs("the query begins elsewhere than the state ends", seeded, found)
    if told is None and (not named or found.keys() != named.keys()):
        raise _differs("the state begins a stream, and the sink is not told where: give it starts_from", seeded, None)


def _differs(reason: str, seeded: Any, found: Any) -> StateGoneError:
    return StateGoneError(
        f"{reason}. Rows between the two would be missing or count twice: start the query, with a new Spark "
        "checkpoint, where the seed ends, or correct job or primary",
        starts_from=seeded,
        found=found,
    )
