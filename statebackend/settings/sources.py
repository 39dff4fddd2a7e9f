"""Reads settings from mappings, TOML, the environment and a Spark configuration.

    name := field | record "." field        in an environment variable "__" stands for "."

An unknown name is an error that names the closest known one, and a name of an earlier release one that names its
successor: a misspelt setting that is silently ignored is the worst of all.
"""

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from statebackend.errors import SettingsError, UnknownSettingError
from statebackend.settings.bounds import check_text, record_type

ENVIRONMENT_PREFIX: Final = "STATEBACKEND_"
"""Variables that begin with it are settings."""
SPARK_PREFIX: Final = "spark.statebackend."
"""Entries of a Spark configuration that begin with it are settings."""

_S3_NAMES: Final = (
    *("endpoint", "region", "access_key_id", "secret_access_key", "session_token", "addressing", "connections_max"),
    *("connect_timeout_s", "read_timeout_s", "request_timeout_s", "multipart_threshold_bytes", "part_bytes"),
    *("part_concurrency_max", "requests_per_s_max", "retries_per_s_max", "outage_s"),
)
RENAMED: Final[Mapping[str, str]] = {
    **{f"s3_{name}": f"s3.{name}" for name in _S3_NAMES},
    "upload_attempts_max": "upload.attempts_max",
    "upload_timeout_s": "upload.timeout_s",
    "retry_delay_s": "upload.retry_delay_s",
    "primary_outage_s": "upload.primary_outage_s",
    "put_usd_per_1000": "prices.put_usd_per_1000",
    "get_usd_per_1000": "prices.get_usd_per_1000",
    "list_usd_per_1000": "prices.list_usd_per_1000",
    "delete_usd_per_1000": "prices.delete_usd_per_1000",
    "native_bases": "rocksdb_bases",
    "ranges_kept": "ranges_cached_max",
}
"""Names of earlier releases, and today's."""


def nested(
    values: Mapping[str, Any], kind: type[msgspec.Struct], *, spelt: Callable[[str], str] = str
) -> dict[str, Any]:
    """`values` as mappings inside a mapping, one for each record of `kind`, which may be given either way.

    Raises `UnknownSettingError`, in which `spelt` makes the source's spelling of a name, and `SettingsError` for a
    name that is given twice, or is no text, and for a text that nothing can be named by. No error shows a value.
    """
    given = cast("object", values)  # callers may be untyped
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in cast("Mapping[object, Any]", given)):
        raise SettingsError("settings are a mapping of names, which are text, to values", given=type(values).__name__)
    known = dotted_names(kind)
    plain: dict[str, Any] = {}
    for name, value in _pairs(values, {name.partition(".")[0] for name in known if "." in name}):
        if name not in known:
            raise _unknown(name, known, spelt)
        check_text(name, value, is_shown=False)
        if name in plain:
            raise SettingsError("the setting is given twice", name=name)
        plain[name] = value
    tree: dict[str, Any] = {}
    for name, value in plain.items():
        *record, field = name.split(".")
        (tree.setdefault(record[0], {}) if record else tree)[field] = value
    return tree


def dotted_names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Every field of `kind`, and of the records in it: `job`, `s3.endpoint`."""
    names: list[str] = []
    for field in msgspec.structs.fields(kind):
        if (record := record_type(field.type)) is not None:
            names += (f"{field.name}.{inner}" for inner in record.__struct_fields__)
        else:
            names.append(field.name)
    return tuple(names)


def check_arguments(kind: type[msgspec.Struct], values: Sequence[object], fields: Mapping[str, object]) -> None:
    """Raise `SettingsError` unless a record of `kind` can be made of these arguments, whatever their values are."""
    if values:
        raise SettingsError(f"settings are given by name, as {kind.__name__}({kind.__struct_fields__[0]}=...)")
    for name in fields:
        if name not in kind.__struct_fields__:
            raise _unknown(name, dotted_names(kind), partial(_as_argument, kind))
    if missing := [field.name for field in msgspec.structs.fields(kind) if field.required and field.name not in fields]:
        raise SettingsError("a setting is missing that has no default", name=", ".join(missing))


def _as_argument(kind: type[msgspec.Struct], name: str) -> str:
    """The setting `s3.region` as an argument of `kind`: s3=S3Settings(region=...)."""
    record, _, field = name.rpartition(".")
    found = next((record_type(each.type) for each in msgspec.structs.fields(kind) if each.name == record), None)
    return field if found is None else f"{record}={found.__name__}({field}=...)"


def toml_table(path: str | os.PathLike[str], table: str) -> dict[str, Any]:
    """The table of that name. Raises `SettingsError` where there is no such file, or table, or it is not TOML."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))  # editors on Windows begin it by a mark
    except OSError as error:
        raise SettingsError("the settings file cannot be read", path=str(path)) from error
    except ValueError as error:
        raise SettingsError(f"the settings file is not TOML: {error}", path=str(path)) from error
    if not isinstance(values := document.get(table), dict):
        raise SettingsError("the settings file has no such table", path=str(path), table=table)
    return cast("dict[str, Any]", values)


def from_variables(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names and values of the environment variables with our prefix."""
    return {
        name.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", "."): text
        for name, text in pairs
        if name.startswith(ENVIRONMENT_PREFIX)
    }


def from_spark(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names and values of the entries of a Spark configuration with our prefix."""
    pairs = cast("Mapping[str, str]", pairs).items() if isinstance(pairs, Mapping) else pairs
    return {name.removeprefix(SPARK_PREFIX): text for name, text in pairs if name.startswith(SPARK_PREFIX)}


def as_variable(name: str) -> str:
    """The environment variable for a setting: `s3.endpoint` is `STATEBACKEND_S3__ENDPOINT`."""
    return ENVIRONMENT_PREFIX + name.replace(".", "__").upper()


def as_spark(name: str) -> str:
    """The Spark configuration's name of a setting: `s3.endpoint` is `spark.statebackend.s3.endpoint`."""
    return SPARK_PREFIX + name


def _pairs(values: Mapping[str, Any], records: set[str]) -> Iterable[tuple[str, Any]]:
    """Dotted names and values."""
    for name, value in values.items():
        if name not in records:
            yield name, value
            continue
        inner = msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else value
        if not isinstance(inner, Mapping):
            raise SettingsError(f"{name} is several settings: give them as a mapping, or one by one as {name}.NAME")
        for field, each in cast("Mapping[str, Any]", inner).items():
            yield f"{name}.{field}", each


def _unknown(name: str, known: tuple[str, ...], spelt: Callable[[str], str]) -> UnknownSettingError:
    if name in known:  # and no argument, as it has a dot
        return UnknownSettingError(f"the setting is in a record: {spelt(name)!r}", name=name)
    if name in RENAMED:
        return UnknownSettingError(f"the setting has a new name: {spelt(RENAMED[name])!r}", name=name)
    closest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {spelt(closest[0])!r}?" if closest else f"known are {', '.join(map(spelt, sorted(known)))}"
    return UnknownSettingError(f"unknown setting; {hint}", name=name)


class _Named(msgspec.StructMeta):
    """Makes records by names that it has checked. msgspec's own error is a bare `TypeError`, and has no advice."""

    if not TYPE_CHECKING:  # type checkers know the names

        def __call__(self, *values: Any, **fields: Any) -> Any:
            check_arguments(self, values, fields)
            return super().__call__(**fields)


class SettingsRecord(msgspec.Struct, metaclass=_Named, frozen=True, kw_only=True):
    """A record of settings, made of arguments with names. A misspelt one is told as it would be in a mapping."""
