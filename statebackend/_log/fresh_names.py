"""Names and stamps that nobody else makes, on any host. The only place in this room that draws random ids."""

import itertools
import secrets
import uuid
from collections.abc import Callable

from statebackend._codec.commit import Commit
from statebackend._log.names import changelog_id, data_name, log_position
from statebackend.ids import Epoch, KeyGroupRange


def new_stamp() -> str:
    """A stamp, by which a writer tells its own entry in the log from everybody else's."""
    return uuid.uuid4().hex


def new_names(epoch: Epoch) -> Callable[[], str]:
    """A source of data names for one opening of the job in `epoch`."""
    numbers = itertools.count()
    return lambda: data_name(epoch, next(numbers), uuid.uuid4().hex)


def attempt_names(epoch: Epoch, base: Commit | None) -> Callable[[], str]:
    """A source of data names for one attempt at a range. Names of all attempts sort in the order of their bases.

    An attempt on a later commit decides by that which copies can go: `retention.superseded`.
    """
    numbers = itertools.count()
    return lambda: data_name(epoch, next(numbers), uuid.uuid4().hex, position=log_position(base))


def new_log_id(key_groups: KeyGroupRange) -> str:
    """A name for the changelog of one attempt at these key groups. No other attempt of any process has it."""
    return changelog_id(key_groups, secrets.token_urlsafe(12))
