"""`Mirror`: which state, into which table, and how."""

import os
from collections.abc import Sequence
from typing import Final

from statebackend._log.mirror_steps import Form
from statebackend._log.names import check_mirror_name
from statebackend._mirroring.older_changes import older_changes
from statebackend._mirroring.target import MirrorTarget, check_form
from statebackend._mirroring.targets.parquet import ParquetTarget
from statebackend._reading.reading_reports import KeyHistory
from statebackend._state.values import Upcast
from statebackend.abc import ObjectStore
from statebackend.errors import InputError
from statebackend.ids import Key
from statebackend.settings import Settings


class Mirror:
    """A state that is mirrored into a table: `sb.Mirror("legs", to="postgresql://host/db?table=legs")`.

    `to`: a folder, or its URL, for Parquet; `delta:` and a folder or URL; a Postgres URL with a `table`; or any
    `MirrorTarget`. `form`: "log" or "table"; the first that the target can have, unless given. `name`: of the mirror,
    of which a job has one each; that of the state, unless given. `key_as_json`: keys as text in JSON, for states with
    keys of several types. `migrate`: as in the state's declaration. `every_s`: seconds between two looks at the job.
    `hold_s`: how long sweeps keep the commits that the table lacks; they keep all for an hour in any case.

    Raises `InputError` for a name that no mirror can have, and a form that the target cannot have.
    """

    def __init__(
        self,
        state: str,
        *,
        to: MirrorTarget | str | os.PathLike[str],
        name: str | None = None,
        form: Form | None = None,
        key_as_json: bool = False,
        migrate: Upcast | Sequence[Upcast] = (),
        every_s: float = 1.0,
        hold_s: float = 0.0,
    ) -> None:
        if not every_s > 0 or not hold_s >= 0:
            raise InputError("every_s must be positive, and hold_s not negative", every_s=every_s, hold_s=hold_s)
        self.state: Final = state
        self.target: Final = to if isinstance(to, MirrorTarget) else target_at(os.fspath(to))
        self.name: Final = check_mirror_name(state if name is None else name)
        self.form: Final[Form] = check_form(self.target, form)
        self.key_as_json: Final = key_as_json
        self.migrate: Final[Sequence[Upcast]] = (migrate,) if callable(migrate) else migrate
        self.every_s: Final = every_s
        self.hold_s: Final = hold_s

    async def read_on(
        self, settings: Settings, found: KeyHistory, key: Key, *, store: ObjectStore | None = None
    ) -> KeyHistory:
        """A key's history with what the mirror's log has before it. Raises as `older_changes`."""
        return await older_changes(settings, self.name, self.target, found, key, store=store)


def target_at(text: str) -> MirrorTarget:
    """The target of `Mirror(to=...)`: see there. Raises `InputError`."""
    if text.startswith(("postgresql://", "postgres://")):
        from statebackend._mirroring.targets.postgres import PostgresTarget  # noqa: PLC0415  # an extra

        return PostgresTarget.of_url(text)
    if text.startswith("delta:"):
        from statebackend._mirroring.targets.delta import DeltaTarget  # noqa: PLC0415  # an extra

        return DeltaTarget(text.removeprefix("delta:"))
    return ParquetTarget(text)
