"""How an example is named in a test's id: the same in every process, since each worker of a run collects for itself."""

import re


def name_of(example: object, *, length_max: int = 200) -> str:
    """Its `repr` in ASCII, without the address that is in that of an object which has none of its own."""
    return re.sub(r" at 0x[0-9a-f]+", "", ascii(example))[:length_max]


def short_name_of(example: object) -> str:
    """As `name_of`, for examples that may be long."""
    return name_of(example, length_max=30)
