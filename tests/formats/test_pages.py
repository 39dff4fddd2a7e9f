"""The pages in `docs/formats` say what the code does: grammars, codes, fields and examples are compared with it."""

import inspect
import json
import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from statebackend._codec import cells as cell_format
from statebackend._codec import commit, compression, frame, local_snapshot, pages, schema, segment, staged
from statebackend._codec.change_sets import column_changes, keyed_changes, paged_changes, parts, state_change
from statebackend._codec.commit import Claim, Commit
from statebackend._columns import table_schema as column_schema
from statebackend._log import names
from statebackend._state.kinds.operator_state import OPERATOR_KINDS
from statebackend._tables.heap import KINDS
from statebackend.ids import ChangeSetHandle, Handle, RangeState, SourceMark, StagedOutput, StateDescriptor
from tests.formats.make_golden import GOLDEN

PAGES = Path(__file__).parents[2] / "docs" / "formats"
SEGMENT_PAGE = (PAGES / "segment.md").read_text(encoding="utf-8")
CELLS_PAGE = (PAGES / "cells.md").read_text(encoding="utf-8")
COLUMNS_PAGE = (PAGES / "columns.md").read_text(encoding="utf-8")
COMMIT_PAGE = (PAGES / "commit.md").read_text(encoding="utf-8")
OUTPUT_PAGE = (PAGES / "staged-output.md").read_text(encoding="utf-8")
PAGES_PAGE = (PAGES / "pages.md").read_text(encoding="utf-8")
LOCAL_PAGE = (PAGES / "local-snapshot.md").read_text(encoding="utf-8")


def fenced(page: str, kind: str) -> list[list[str]]:
    """The lines of each block of that kind."""
    return [block.splitlines() for block in re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)]


def grammar(module: ModuleType) -> list[str]:
    """The indented lines of a module's docstring."""
    lines = (inspect.getdoc(module) or "").splitlines()
    return [line.removeprefix("    ") for line in lines if line.startswith("    ")]


def cells(page: str, header: str) -> list[list[str]]:
    """The rows of the table whose first heading, or headings, are `header`; without backquotes."""
    rows = page.split(f"\n| {header} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in rows]


def field_names(type_: type[msgspec.Struct]) -> list[str]:
    """The names of the fields of a struct as its bytes have them, in order."""
    return [field.encode_name for field in msgspec.structs.fields(type_)]


@pytest.mark.parametrize(
    ("page", "module"),
    [
        (SEGMENT_PAGE, segment),
        (SEGMENT_PAGE, frame),
        (SEGMENT_PAGE, parts),
        (SEGMENT_PAGE, keyed_changes),
        (SEGMENT_PAGE, column_changes),
        (SEGMENT_PAGE, state_change),
        (COLUMNS_PAGE, column_schema),
        (PAGES_PAGE, paged_changes),
        (PAGES_PAGE, pages),
        (COMMIT_PAGE, commit),
        (COMMIT_PAGE, schema),
        (COMMIT_PAGE, names),
        (LOCAL_PAGE, local_snapshot),
        (CELLS_PAGE, cell_format),
        (OUTPUT_PAGE, staged),
    ],
    ids=[
        "segment",
        "frame",
        "parts",
        "keyed changes",
        "column changes",
        "records",
        "schema of columns",
        "paged changes",
        "pages",
        "commit",
        "schema",
        "names",
        "local snapshot",
        "cells",
        "staged output",
    ],
)
def test_grammar_on_the_page_is_the_one_in_the_code(page: str, module: ModuleType) -> None:
    """Line by line."""
    assert grammar(module)
    assert grammar(module) in fenced(page, "text")


@pytest.mark.parametrize(
    ("page", "golden", "shown"),
    [
        (SEGMENT_PAGE, "segment-v2-example.bin", range(174)),
        (COLUMNS_PAGE, "segment-v2-columns-example.bin", range(0x2B, 0xA2)),
        (COMMIT_PAGE, "commit-v1.bin", range(16)),
        (OUTPUT_PAGE, "output-v1.bin", range(21)),
    ],
    ids=["segment", "columns", "commit", "staged output"],
)
def test_example_is_the_golden_file(page: str, golden: str, shown: range) -> None:
    """Byte by byte, at the offsets it gives; of a commit, what stands before the manifest, of columns the part."""
    data = (GOLDEN / golden).read_bytes()
    assert f"`tests/formats/golden/{golden}`, {len(data)} bytes" in page
    (lines,) = fenced(page, "hexdump")
    offset = shown.start
    for line in filter(None, lines):
        at, found, meaning = re.fullmatch(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} )+) +(\S.*)", line).groups()  # type: ignore[union-attr]
        part = bytes.fromhex(found)
        assert (int(at, 16), part) == (offset, data[offset : offset + len(part)]), meaning
        offset += len(part)
    assert offset == shown.stop


@pytest.mark.parametrize(("block", "golden"), [(0, "commit-v1.bin"), (1, "claim-v1.bin")])
def test_manifest_on_the_page_is_the_golden_file(block: int, golden: str) -> None:
    """Value by value, in the same order."""
    lines = fenced(COMMIT_PAGE, "json")[block]
    manifest = msgspec.msgpack.decode((GOLDEN / golden).read_bytes()[16:])
    assert json.dumps(json.loads("\n".join(lines))) == json.dumps(manifest)


def test_codecs_on_the_page_are_those_in_the_code() -> None:
    """With their bounds."""
    shown = [(int(code), name, int(bound)) for code, name, _, bound in cells(SEGMENT_PAGE, "Code | `codec`")]
    assert shown == [(codec.code, name, codec.expansion_max) for name, codec in compression._CODECS.items()]


def test_operations_on_the_page_are_those_in_the_code() -> None:
    """With their codes."""
    shown = [(int(code), name) for code, name, _ in cells(SEGMENT_PAGE, "Code | `operation`")]
    assert shown == [(operation.value, operation.name) for operation in state_change.Operation]


def test_every_operation_and_kind_is_on_the_page_of_cells() -> None:
    """With what their data is."""
    rows = cells(CELLS_PAGE, "Kind")
    assert {each for _, operations, _ in rows for each in operations.split(", ")} == {
        operation.name for operation in state_change.Operation
    }
    assert {each for kinds, *_ in rows for each in kinds.split(", ")} == {*KINDS, "all of these"}


def test_operator_kinds_are_on_the_page_of_cells() -> None:
    """By the names that are stored."""
    assert all(f"`{kind}`" in CELLS_PAGE for kind in OPERATOR_KINDS.values())


def test_fields_on_the_page_are_those_in_the_code() -> None:
    """In the order in which they are written."""
    assert [name for name, *_ in cells(COMMIT_PAGE, "Field of a claim")] == field_names(Claim)
    rows = cells(COMMIT_PAGE, "Field")
    assert [name for name, *_ in rows] == field_names(Commit)
    meaning = {name: words for name, _, words in rows}
    for name, part in (
        ("ranges", RangeState),
        ("states", StateDescriptor),
        ("source", SourceMark),
        ("outbox", StagedOutput),
    ):
        assert ", ".join(field_names(part)) in meaning[name]


def test_handle_on_the_page_is_the_one_in_the_code() -> None:
    """Its positions are its meaning."""
    assert f"handle  := [{', '.join(field_names(ChangeSetHandle))}]" in COMMIT_PAGE
    assert f"segment := [{', '.join(field_names(Handle))}]" in COMMIT_PAGE


def test_every_field_of_a_change_is_on_the_page() -> None:
    """And of a frame's header."""
    named = {name for row in cells(SEGMENT_PAGE, "Field") for name in row[0].split(", ")}
    assert named >= {*field_names(state_change.StateChange), "log_id", "sequence_number", "first", "last", "records"}
    assert named >= {"raw_length", "codec"}


def test_fields_of_a_local_snapshot_are_on_its_page() -> None:
    """In the order in which they are written."""
    assert [name for name, *_ in cells(LOCAL_PAGE, "Field")] == field_names(local_snapshot.LocalSnapshot)
