"""More readers, which the library has beside `read_state`: rows, differences, files, commands, earlier checkpoints."""

import csv
import struct
from collections.abc import Collection
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

import statebackend as sb
from statebackend._codec.plain import plain
from statebackend._upkeep.sizes import size_totals
from statebackend.cli.commands import main
from statebackend.errors import InputError
from tests.programs.dictionaries import Dictionaries
from tests.programs.looking import Readers, check, expected_rows, refused, rows_in
from tests.programs.program import Declared
from tests.programs.values import TYPES, key_read, text_of

Json = msgspec.json.encode
csv.field_size_limit(1 << 24)  # some values have more than a megabyte


def key_in_json(key: Any) -> str:
    return Json(plain(key)).decode()


def _is_alike(was: str | None, now: str | None) -> bool:
    """True if only names of a map differ that Python takes for equal: 0.0 and -0.0. The one that was first may stay."""
    if was is None or now is None:
        return False
    zero, other = (struct.pack(">d", each).hex() for each in (0.0, -0.0))
    return was.replace(other, zero) == now.replace(other, zero)


class MoreReaders(Readers):
    async def look_at_rows(self, held: Dictionaries) -> None:
        """`read_rows`: the keys of all states. What has expired may still be there."""
        names = [each.name for each in self.known(held, self.keyed)]
        if not names:
            return
        shares: list[float] = []
        async with sb.read_rows(self.settings, states=names, tell=lambda told: shares.append(told.share)) as rows:
            check("shares that were read", shares, sorted(shares))
            check("share in the end", shares[-1:], [1.0] * bool(shares))
            found: dict[str, set[str]] = {name: set() for name in names}
            for row in rows:
                found[row.state].add(Json(row.key).decode())
        for declared in self.known(held, self.keyed):
            expected = {key_in_json(key) for key in held.rows(declared)}
            check(f"missing rows of {declared.name}", sorted(expected - found[declared.name]), [])
            if declared.ttl_s is None:
                check(f"rows of {declared.name}", sorted(found[declared.name]), sorted(expected))

    async def look_at_report(self, held: Dictionaries, newest_id: int, savepoints: Collection[str]) -> None:
        """`report`: of each state how many keys it has, where that was counted and nothing expires."""
        report = await sb.report(self.settings)
        check("checkpoint of the report", report.newest.checkpoint_id, newest_id)
        check("savepoints of the report", sorted(each.name for each in report.savepoints), sorted(savepoints))
        states = {each.name: each for each in self.known(held, self.keyed) if each.ttl_s is None}
        for total in size_totals(report.sizes):
            name, *others = total.states
            if name not in states or others or total.is_estimate or total.ranges < len(report.ranges):
                continue
            check(f"keys of {name} in the report", total.keys, len(held.rows(states[name])))

    async def look_at_differences(self, ids: tuple[int, int], before: Dictionaries, after: Dictionaries) -> None:
        """`diff`: which keys of which states are others. Not of states from which values expire: those show as well."""
        states = [each for each in self.known(after, self.keyed) if each.ttl_s is None and each.name in before.known]
        if not states:
            return
        found: dict[str, str] = {}
        migrate = {state.name: TYPES[state.type].upcasts for state in states}
        different = sb.diff(self.settings, *ids, states=[state.name for state in states], migrate=migrate)
        if before.groups != after.groups:
            with refused(InputError):
                await anext(different)
            return
        async for each in different:
            found[f"{each.state} {Json(each.key).decode()}"] = each.change
        expected: dict[str, str] = {}
        for declared in states:
            was, now = (self._by_json(declared, held) for held in (before, after))
            for key in was.keys() | now.keys():
                if was.get(key) != now.get(key):
                    change = "added" if key not in was else "removed" if key not in now else "changed"
                    expected[f"{declared.name} {key}"] = change
                    if _is_alike(was.get(key), now.get(key)):  # told or not
                        expected.pop(f"{declared.name} {key}")
                        found.pop(f"{declared.name} {key}", None)
        check("differences", found, expected)

    def _by_json(self, declared: Declared, held: Dictionaries) -> dict[str, str]:
        by_text = expected_rows(held, declared)
        keys = {text_of(key_read(key)): key for key in held.rows(declared)}
        return {key_in_json(keys[text]): value for text, value in by_text.items()}

    async def export(self, held: Dictionaries, folder: Path, number: int) -> None:
        """A file of each format, read again."""
        for declared in self.known(held, self.keyed):
            kind = ("parquet", "csv", "jsonl")[number % 3]
            path = folder / f"{declared.name}.{kind}"
            path.unlink(missing_ok=True)
            ttl = self.job.ttl(declared)
            migrate = TYPES[declared.type].upcasts
            report = await sb.export(self.settings, declared.name, path, format=kind, ttl=ttl, migrate=migrate)
            expected = expected_rows(held, declared)
            check(f"rows of {path.name}", report.rows, len(expected))
            if kind == "parquet":
                check(
                    path.name,
                    rows_in(declared, pq.read_table(path).to_pylist(), held.groups),
                    expected,
                )
            elif kind == "csv":
                with path.open(newline="", encoding="utf-8") as file:
                    check(path.name, sum(1 for _ in csv.reader(file)) - 1, len(expected))
            else:
                check(path.name, len(path.read_bytes().splitlines()), len(expected))

    def command(self, *words: str) -> tuple[int, str]:
        """The exit status of a command, and what it prints."""
        out, errors = StringIO(), StringIO()
        job = ["--primary", self.settings.primary, "--job", self.settings.job]
        for root in self.settings.local:
            job += ["--local", root]
        with redirect_stdout(out), redirect_stderr(errors):
            status = main([*words, *job])
        return status, out.getvalue() + errors.getvalue()

    def look_by_commands(self, held: Dictionaries, number: int) -> None:
        """The commands: those that look at the job, and one that reads."""
        word = ("inspect", "report", "savepoints", "dump", "scan")[number % 5]
        states = [each for each in self.known(held, self.keyed) if each.ttl_s is None]
        if word in ("dump", "scan"):
            for declared in states:
                words = ("dump", "--state", declared.name) if word == "dump" else ("scan", declared.name)
                if word == "scan":
                    for upcast in TYPES[declared.type].upcasts:
                        words += ("--migrate", f"{declared.name}={upcast.__module__}:{upcast.__name__}")
                status, text = self.command(*words)
                check(f"{words}: {text}", (status, len(text.splitlines())), (0, len(held.rows(declared))))
            return
        status, text = self.command(word)
        check(f"{word}: {text}", status, 0)
