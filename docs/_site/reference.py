"""Generates pages of `docs/reference` from the code: `python docs/_site/reference.py settings`, `errors`, ...

The meaning of a field is the string below it in the source. No class has that at run time, so the source is read.
"""

import argparse
import ast
import inspect
import re
import sys
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, Final, Literal, cast

import msgspec

from statebackend import cli, errors
from statebackend.cli.options import parser
from statebackend.errors import StateBackendError
from statebackend.settings import CredentialSource, KiB, MiB, Secret, Settings
from statebackend.settings.bounds import bounds_of, record_type
from statebackend.settings.sources import as_variable

ESSENTIAL: Final = (
    *("job", "primary", "local", "local_bytes_max", "s3.region", "s3.endpoint", "table", "table_dir"),
    *("table_memory_bytes", "max_parallelism", "checkpoints_retained", "sweep_interval_s", "persist_delay_s"),
    *("put_budget_usd_month", "upload.primary_outage_s"),
)
"""The settings that users set. Everything else has a default that fits."""

_UNITS: Final[Mapping[str, str]] = {
    "_per_s_max": "per second",
    "_usd_month": "USD per 30 days",
    "_usd_per_1000": "USD",
    "_bytes_max": "bytes",
    "_bytes_min": "bytes",
    "_bytes": "bytes",
    "_s": "seconds",
}
"""Units by the end of the name: the first that fits. Other numbers are counts or ratios."""

_SETTINGS_PAGE: Final = """# Settings

`statebackend.Settings` is frozen and checks itself when it is made: every value, and the values against each other. The
settings for S3, for uploads and for prices are records inside it, from `statebackend.settings`. Units are in the names.

| From | One setting | One in a record |
| --- | --- | --- |
| `Settings(...)` | `job="fleet"` | `s3=S3Settings(region="eu-central-1")` |
| `Settings.from_mapping` | `{{"job": "fleet"}}` | `{{"s3.region": "eu-central-1"}}`, or a mapping inside it |
| `Settings.from_toml` | `job = "fleet"` in `[statebackend]` | `region = "eu-central-1"` in `[statebackend.s3]` |
| `Settings.from_env` | `STATEBACKEND_JOB` | `STATEBACKEND_S3__REGION`, with two underscores |
| `Settings.from_spark_conf` | `spark.statebackend.job` | `spark.statebackend.s3.region` |

Below, each setting ends with its variable of the environment. As one text, `local` is separated by commas. An unknown
name is an error that has the closest name, and the name of an earlier release is an error that has the new one.

## The ones to know

{essential}

## The other ones

{plain}
{records}
This page is generated from `statebackend/settings/`, by `python docs/_site/reference.py settings`.
"""

_ERRORS_PAGE: Final = """# Errors

Everything that the library raises on purpose is a `StateBackendError`, from `statebackend.errors`. The classes are
grouped by what to do next, so an `except` names a reaction. `error.message` is a sentence, `error.facts` a mapping of
the values it talks about; both survive pickling. An error that means the same as a builtin class is one of those, too.

```text
{tree}
```

{groups}
This page is generated from `statebackend/errors.py`, by `python docs/_site/reference.py errors`.
"""

_COMMANDS_PAGE: Final = """# Command line

`statebackend COMMAND`, or `python -m statebackend COMMAND`, looks at a job, reads, verifies and sweeps it without
opening it, also beside a running stream. The job comes from the options, else from the file in `--settings`, or without
a file from the environment: `STATEBACKEND_PRIMARY`, `STATEBACKEND_JOB` and the other [settings](settings.md).
A module of yours that an argument or a setting names has to be found by Python: in the working directory only by
`python -m statebackend`.

## Options of every command
{common}
## Options of several commands
{several}
{commands}
## Exit status

{status}

This page is generated from `statebackend/cli/options.py`, by `python docs/_site/reference.py command-line`.
"""


class Field(msgspec.Struct, frozen=True):
    """One setting, with its dotted name."""

    name: str
    kind: Any
    default: Any
    meaning: str

    def entry(self, level: int) -> str:
        """Its part of the page."""
        facts = [_words_of(self.kind)]
        facts += [unit for end, unit in _UNITS.items() if self.name.endswith(end)][:1]
        facts.append("required" if self.default is msgspec.NODEFAULT else f"default {_shown(self.default)}")
        if "bytes" in facts and (size := cast("int", self.default)):
            facts[-1] += f" ({size // MiB} MiB)" if size >= MiB else f" ({size // KiB} KiB)"
        facts += [bound.says for bound in bounds_of(self.kind)]
        facts.append(f"`{as_variable(self.name)}`")
        return f"{'#' * level} `{self.name}`\n\n{self.meaning}\n\n- {'; '.join(facts)}\n"


def settings_page() -> str:
    """`docs/reference/settings.md`."""
    fields = {field.name: field for field in _fields(Settings)}
    rest = [field for name, field in fields.items() if name not in ESSENTIAL]
    records = [field for field in msgspec.structs.fields(Settings) if record_type(field.type)]
    meanings = _meanings(Settings)
    return _SETTINGS_PAGE.format(
        essential="\n".join(fields[name].entry(3) for name in ESSENTIAL),
        plain="\n".join(field.entry(3) for field in rest if "." not in field.name),
        records="".join(
            f"## `{record.name}`: `{record.type.__name__}`\n\n{meanings[record.name]}\n\n"
            + "".join(field.entry(3) + "\n" for field in rest if field.name.startswith(f"{record.name}."))
            for record in records
        ),
    )


def errors_page() -> str:
    """`docs/reference/errors.md`."""
    groups = [cls for cls in vars(errors).values() if isinstance(cls, type) and cls.__bases__[0] is StateBackendError]
    return _ERRORS_PAGE.format(
        tree=re.sub(r"(?m)  +(?=\w).*$", "", inspect.cleandoc(_tree())), groups="\n".join(map(_group, groups))
    )


def commands_page() -> str:
    """`docs/reference/command-line.md`."""
    (found,) = (each for each in _actions(parser()) if isinstance(each.choices, Mapping))
    helps = {each.dest: str(each.help) for each in cast("Any", found)._choices_actions}  # noqa: SLF001  # argparse tells no other way
    commands = cast("Mapping[str, argparse.ArgumentParser]", found.choices)
    shared = set[str].intersection(*({_call(each) for each in _actions(command)} for command in commands.values()))
    common = [each for each in _actions(commands["inspect"]) if _call(each) in shared]
    status = " ".join((cli.__doc__ or "").partition("Exit status: ")[2].split())
    rest = {
        name: [each for each in _actions(command) if _call(each) not in shared] for name, command in commands.items()
    }
    users = Counter((_call(each), each.help) for own in rest.values() for each in own if each.option_strings)
    calls = Counter(call for call, _ in users)
    several = {
        _call(each): each
        for own in rest.values()
        for each in own
        if users[_call(each), each.help] > 1 and calls[_call(each)] == 1
    }
    return _COMMANDS_PAGE.format(
        common=_arguments(common),
        several=_arguments(list(several.values())),
        commands="\n".join(
            f"## `statebackend {name}`\n\n{helps[name][0].upper()}{helps[name][1:]}."
            + _named([each for each in own if _call(each) in several])
            + _arguments([each for each in own if _call(each) not in several])
            for name, own in rest.items()
        ),
        status="\n".join(f"- {each.strip()}" for each in status.rstrip(".").split(";")),
    )


def _actions(of: argparse.ArgumentParser) -> list[argparse.Action]:
    return [each for each in cast("Any", of)._actions if each.dest != "help"]  # noqa: SLF001  # argparse has no other list


def _call(action: argparse.Action) -> str:
    """An option or argument as it is written in a call."""
    value = str(action.metavar or action.dest.upper())
    if action.choices:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if action.nargs == 0:
        value = ""
    return " ".join(filter(None, [*action.option_strings[:1], value]))


def _named(actions: list[argparse.Action]) -> str:
    """The options of several commands that this one takes, in a sentence."""
    names = ", ".join(f"`{each.option_strings[0]}`" for each in actions)
    return f" Takes {names}.\n" if names else "\n"


def _arguments(actions: list[argparse.Action]) -> str:
    """The table of these, or nothing if there are none."""
    rows = "".join(f"| `{_call(each)}` | {each.help} |\n" for each in actions)
    return f"\n| Argument | Meaning |\n| --- | --- |\n{rows}" if rows else ""


def _fields(kind: type[msgspec.Struct], record: str = "") -> Iterator[Field]:
    meanings = _meanings(kind)
    for field in msgspec.structs.fields(kind):
        if (inner := record_type(field.type)) is not None:
            yield from _fields(inner, f"{field.name}.")
        else:
            yield Field(record + field.name, field.type, field.default, meanings[field.name])


def _meanings(kind: type) -> dict[str, str]:
    """The texts below the fields of a class and of those that it extends, by field."""
    above = [_meanings(base) for base in kind.__bases__ if base is not msgspec.Struct]
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    return {name: meaning for each in above for name, meaning in each.items()} | {
        field.target.id: " ".join(below.value.value.split())
        for field, below in zip(definition.body, definition.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
        and isinstance(below.value.value, str)
    }


def _words_of(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _words_of(arguments[0])
    if origin is Literal:
        return f"one of {', '.join(map(_shown, arguments))}"
    if hidden := [kind for kind in (Secret, CredentialSource) if kind in arguments]:
        return f"`{hidden[0].__name__}`" + (", or none" if NoneType in arguments else "")
    return f"`{kind.__name__ if isinstance(kind, type) and not arguments else kind}`"


def _shown(value: Any) -> str:
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _tree() -> str:
    """The drawing in the docstring of `errors`."""
    return (errors.__doc__ or "").split("\n\n")[1]


def _group(cls: type[StateBackendError]) -> str:
    (reaction,) = re.findall(rf"─ {cls.__name__} +(.+)", _tree())
    rows = "".join(f"| `{each.__name__}` | {_builtins(each)} | {_doc(each)} |\n" for each in (cls, *_below(cls)))
    head = "| Error | Also a | What happened, and what to do |\n| --- | --- | --- |\n"
    return f"## {reaction[0].upper()}{reaction[1:]}\n\n{head}{rows}"


def _below(cls: type[StateBackendError]) -> Iterator[type[StateBackendError]]:
    for each in cls.__subclasses__():
        if each.__module__ == StateBackendError.__module__:  # others never leave their room, or are a user's
            yield each
            yield from _below(each)


def _builtins(cls: type[StateBackendError]) -> str:
    found = [each for each in cls.__mro__ if each.__module__ == "builtins"]
    return ", ".join(f"`{each.__name__}`" for each in found if each not in {Exception, BaseException, object})


def _doc(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split())


PAGES: Final = {"settings": settings_page, "errors": errors_page, "command-line": commands_page}

if __name__ == "__main__":
    sys.stdout.write(PAGES[sys.argv[1]]())
