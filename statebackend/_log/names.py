"""Names and stamps that nobody else makes, on whatever host."""

import itertools
import secrets
import uuid
from collections.abc import Callable

from statebackend._codec.commit import Commit
from statebackend._log.retention import NAMES_PER_ATTEMPT
from statebackend._log.superseded import standing
from statebackend.ids import Epoch, KeyGroupRange


def new_stamp() -> str:
    """What tells an entry of ours in the log from everybody else's."""
    return uuid.uuid4().hex


def new_names(epoch: Epoch) -> Callable[[], str]:
    """Names that nobody else makes. They sort in the order in which they were made, and tell the epoch they are of.

    A sweep goes by that: what no commit reaches, and is of an older epoch than the newest, never will be reached.
    """
    numbers = itertools.count()
    return lambda: f"{epoch:08d}-{next(numbers):08d}-{uuid.uuid4().hex}"


def attempt_names(epoch: Epoch, base: Commit | None) -> Callable[[], str]:
    """As `new_names`, for an attempt that stands on `base`: the names of all attempts sort in the order of their bases.

    Whoever stands on a later commit goes by that: what this one has won is in it, and what it has lost is not.
    """
    numbers = itertools.count(standing(base) * NAMES_PER_ATTEMPT)
    return lambda: f"{epoch:08d}-{next(numbers):014d}-{uuid.uuid4().hex}"


def new_log_id(key_groups: KeyGroupRange) -> str:
    """The name of the changelog of one attempt at these key groups. No other attempt of any process has it."""
    return f"{key_groups.first}-{key_groups.last}-{secrets.token_urlsafe(12)}"
