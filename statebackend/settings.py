"""Every knob, in two groups: `Settings` says what the job means, `Tuning` how fast and how much at once.

Settings are frozen and check themselves, each alone and in relation to the others, when they are made. Units are
in the names. They come from keyword arguments, or from a mapping, TOML, the environment or a Spark
configuration, where an unknown name is an error that names the closest known one.
"""

import difflib
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any, Final, Literal, Self, cast
from urllib.parse import urlsplit

import msgspec

from statebackend.errors import LocalRootError, PrimaryUrlError, SettingsError, UnknownSettingError
from statebackend.ids import MAX_PARALLELISM_LIMIT

KiB: Final = 1024
MiB: Final = 1024 * KiB

PREEMPTIVE_BYTES_LIMIT: Final = 256 * MiB
"""Most for `preemptive_persist_threshold_bytes`: a frame holds four times as much, and the threshold is an estimate."""

Compression = Literal["none", "lz4", "snappy", "zstd"]

ENVIRONMENT_PREFIX: Final = "STATEBACKEND_"
SPARK_PREFIX: Final = "spark.statebackend."
PRIMARY_FORMS: Final = "memory://NAME or file:///ABSOLUTE/PATH"

_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """How fast and how much at once. Changing these between two runs changes no result."""

    persist_delay_s: float = 0.010
    """How long the first waiting change set waits for company before its segment is sent. 0: not at all."""
    persist_size_threshold_bytes: int = 10 * MiB
    """Waiting bytes that send a segment at once."""
    preemptive_persist_threshold_bytes: int = 5 * MiB
    """Bytes in a writer's open change set above which it is sealed and uploaded before a checkpoint asks."""
    inline_bytes_max: int = 64 * KiB
    """A checkpoint of at most so many bytes travels in its commit, unless `uploader=` is given. 0: never."""
    in_flight_bytes_max: int = 100 * MiB
    """Bytes queued or being uploaded. At the limit callers wait; one upload larger than the limit is admitted."""

    upload_attempts_max: int = 3
    """Attempts at one segment in all, the first included."""
    upload_timeout_s: float = 1.0
    """After this long another attempt starts *beside* the first. 0: never."""
    retry_delay_s: float = 0.5
    """Pause after an attempt that failed with an I/O error."""
    primary_outage_s: float = 0.0
    """How long uploads and commits go on trying while the primary says that it is unavailable, beyond their attempts.
    A checkpoint waits as long, and `commit_timeout_s` is longer by it. 0: it fails when the attempts are used up."""
    secondary_grace_s: float = 0.5
    """How long a finished primary waits for the local copy before that copy is given up. Part of `upload_timeout_s`."""
    commit_timeout_s: float = 30.0
    """How long a commit waits for the store's answer before its outcome counts as unknown."""
    close_timeout_s: float = 10.0
    """How long leaving the backend waits for uploads under way."""

    restore_concurrency_max: int = 16
    """Files fetched at a time by a restore."""
    io_threads_max: int = 8
    """Worker threads for files at a time, in one store."""
    cpu_threads_max: int = 2
    """Worker threads for compression and checksums at a time."""

    def __post_init__(self) -> None:
        _check_types(self)
        for name in ("persist_delay_s", "upload_timeout_s", "retry_delay_s", "primary_outage_s", "secondary_grace_s"):
            _require(0 <= getattr(self, name) < math.inf, f"{name} must be finite and not negative", self, name)
        for name in ("commit_timeout_s", "close_timeout_s"):
            _require(0 < getattr(self, name) < math.inf, f"{name} must be finite and positive", self, name)
        for name in (
            "in_flight_bytes_max",
            "upload_attempts_max",
            "restore_concurrency_max",
            "io_threads_max",
            "cpu_threads_max",
        ):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1", self, name)
        for name in ("persist_size_threshold_bytes", "preemptive_persist_threshold_bytes", "inline_bytes_max"):
            _require(getattr(self, name) >= 0, f"{name} must not be negative", self, name)
        _require(
            self.preemptive_persist_threshold_bytes <= PREEMPTIVE_BYTES_LIMIT,
            f"a change set must fit a frame: at most {PREEMPTIVE_BYTES_LIMIT}",
            self,
            "preemptive_persist_threshold_bytes",
        )
        _require(
            self.inline_bytes_max <= PREEMPTIVE_BYTES_LIMIT,
            f"a commit carries at most {PREEMPTIVE_BYTES_LIMIT}",
            self,
            "inline_bytes_max",
        )
        _require(
            self.persist_size_threshold_bytes <= self.in_flight_bytes_max,
            "a full segment must fit in flight: lower persist_size_threshold_bytes or raise in_flight_bytes_max",
            self,
            "persist_size_threshold_bytes",
            "in_flight_bytes_max",
        )


class Settings(Tuning, frozen=True, kw_only=True):
    """What the job means: its name, where its two copies live, and what is fixed for its lifetime.

    Raises `SettingsError`, or the subclass for the setting at fault, when made with a value out of bounds.
    """

    job: str
    """Name of the job: letters, digits, '.', '_' and '-', at most 100. Its data lives under this name."""
    primary: str
    """URL of the store that is the truth: `memory://name` or `file:///path`."""
    local: tuple[str, ...] = ()
    """Absolute directories for the local copy. Empty: no local copy. Several: segments spread over them."""
    local_bytes_max: int = 0
    """Bytes of local copies in each root. 0: no limit. Where it is reached, new segments have no local copy."""
    max_parallelism: int = 128
    """Number of key groups. Fixed when the job first commits: 1 to 32768."""
    compression: Compression = "zstd"
    """Compression of each frame. May change between two runs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _JOB_NAME.fullmatch(self.job):
            raise SettingsError("job must be 1 to 100 letters, digits, '.', '_' or '-'", job=self.job)
        check_primary(self.primary)
        for root in self.local:
            if not PurePath(root).is_absolute():
                raise LocalRootError("a local root must be an absolute path", root=root)
        if len({os.path.normpath(root) for root in self.local}) != len(self.local):
            raise LocalRootError("the local roots must differ", local=self.local)
        _require(self.local_bytes_max >= 0, "local_bytes_max must not be negative", self, "local_bytes_max")
        _require(
            1 <= self.max_parallelism <= MAX_PARALLELISM_LIMIT,
            f"max_parallelism must lie within 1 and {MAX_PARALLELISM_LIMIT}",
            self,
            "max_parallelism",
        )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Settings from names and values. Strings are converted; `local` may be comma-separated."""
        for name in values:
            if name not in cls.__struct_fields__:
                raise _unknown(name, cls.__struct_fields__)
        converted = dict(values)
        if isinstance(local := converted.get("local"), str):
            converted["local"] = [root.strip() for root in local.split(",") if root.strip()]
        try:
            return msgspec.convert(converted, cls, strict=False)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, SettingsError):
                raise error.__cause__ from None
            raise SettingsError(f"not valid settings: {error}") from error

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], *, table: str = "statebackend") -> Self:
        """Settings from the table `[statebackend]` of a TOML file."""
        try:
            document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise SettingsError("the settings file cannot be read", path=str(path)) from error
        except ValueError as error:
            raise SettingsError(f"the settings file is not TOML: {error}", path=str(path)) from error
        if not isinstance(values := document.get(table), dict):
            raise SettingsError("the settings file has no such table", path=str(path), table=table)
        return cls.from_mapping(cast("dict[str, Any]", values))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Settings from `STATEBACKEND_JOB`, `STATEBACKEND_PRIMARY`, ...; `environ` defaults to the process's."""
        pairs = (os.environ if environ is None else environ).items()
        return cls.from_mapping(
            {
                name.removeprefix(ENVIRONMENT_PREFIX).lower(): text
                for name, text in pairs
                if name.startswith(ENVIRONMENT_PREFIX)
            }
        )

    @classmethod
    def from_spark_conf(cls, pairs: Iterable[tuple[str, str]]) -> Self:
        """Settings from `spark.statebackend.*` of `spark.sparkContext.getConf().getAll()`."""
        return cls.from_mapping(
            {name.removeprefix(SPARK_PREFIX): text for name, text in pairs if name.startswith(SPARK_PREFIX)}
        )


def check_primary(url: str) -> None:
    """Raise `PrimaryUrlError` unless `url` has one of the forms of `PRIMARY_FORMS`."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise PrimaryUrlError(f"the primary is not a URL: use {PRIMARY_FORMS}", primary=url) from error
    if parts.scheme == "memory":
        known = bool(parts.netloc) and parts.path in ("", "/")
    elif parts.scheme == "file":
        known = parts.netloc in ("", "localhost") and parts.path.startswith("/") and parts.path != "/"
    else:
        raise PrimaryUrlError(f"the primary has an unknown scheme: use {PRIMARY_FORMS}", primary=url)
    if not known or parts.query or parts.fragment:
        raise PrimaryUrlError(f"the primary's URL is incomplete: use {PRIMARY_FORMS}", primary=url)


def _check_types(settings: Tuning) -> None:
    """Raise `SettingsError` for a value of the wrong type: making a struct directly checks none of them."""
    for field in msgspec.structs.fields(settings):
        try:
            value = msgspec.convert(getattr(settings, field.name), field.type)
        except msgspec.ValidationError as error:
            facts = {field.name: getattr(settings, field.name)}
            raise SettingsError(f"{field.name} has a wrong type or value: {error}", **facts) from error
        msgspec.structs.force_setattr(settings, field.name, value)  # a list of roots becomes the tuple it should be


def _require(holds: bool, message: str, settings: Tuning, *names: str) -> None:
    if not holds:
        raise SettingsError(message, **{name: getattr(settings, name) for name in names})


def _unknown(name: str, known: tuple[str, ...]) -> UnknownSettingError:
    closest = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {closest[0]!r}?" if closest else f"; known are {', '.join(sorted(known))}"
    return UnknownSettingError(f"unknown setting{hint}", name=name)
