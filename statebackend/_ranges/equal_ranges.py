"""Cuts the key groups of a job into ranges of equal size. Pure."""

import itertools
from numbers import Integral
from typing import cast

from statebackend.errors import SettingsError
from statebackend.ids import KeyGroupRange


def ranges_of(parallelism: int, max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """The key groups of each slot. Raises `SettingsError` unless every slot has at least one."""
    is_number = isinstance(cast("object", parallelism), Integral) and not isinstance(parallelism, bool)
    if not is_number or not 1 <= parallelism <= max_parallelism:
        raise SettingsError(
            "parallelism must be a whole number between 1 and max_parallelism, which is fixed once a job has committed",
            parallelism=parallelism,
            max_parallelism=max_parallelism,
        )
    firsts = [-(-slot * max_parallelism // parallelism) for slot in range(parallelism + 1)]
    return tuple(KeyGroupRange(first, end - 1) for first, end in itertools.pairwise(firsts))
