"""The releases of Spark that the sink works with."""

import re
from typing import Final

from statebackend.errors import SettingsError

OLDEST: Final = (4, 0)


def check_release(release: str) -> None:
    """Raise `SettingsError` for a PySpark that lacks what the sink needs. A release that says no number passes."""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is not None and (int(found[1]), int(found[2])) < OLDEST:
        raise SettingsError(
            "the sink needs PySpark 4.0 or newer, and Java 17: pip install 'pyspark>=4.0'", pyspark=release
        )
