"""A schema says what a value looks like in storage: equal where it looks the same, different where it does not."""

import dataclasses
import datetime as dt
import decimal
import enum
import math
import os
import subprocess
import sys
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._codec.schema import TYPE_DEPTH_MAX, check_depth, misread, schema_of
from statebackend._codec.serializers import MsgspecSerializer
from statebackend.errors import InputError
from tests.examples import name_of


def struct(*fields: Any, name: str = "Leg", **options: Any) -> type[msgspec.Struct]:
    """A struct type with these fields."""
    return msgspec.defstruct(name, list(fields), **options)


class Pair(NamedTuple):
    first: int
    second: str


class Options(TypedDict, total=False):
    depth: int


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Leg:
    """One flight."""

    origin: str
    miles: float


class Tree(msgspec.Struct):
    """With a docstring."""

    value: int
    left: "Tree | None" = None
    right: "Tree | None" = None


class File(msgspec.Struct):
    folder: "Folder | None"
    links: "list[File]"


class Folder(msgspec.Struct):
    files: list[File]


FILE = (
    '{"record":{"folder":{"one_of":["none",{"record":{"files":{"list":{"item_type":{"up":2}}}}}]},'
    '"links":{"list":{"item_type":{"up":1}}}}}'
)


@pytest.mark.parametrize(
    ("type_", "schema"),
    [
        (int, '"int"'),
        (None, '"none"'),
        (Any, '"any"'),
        (dt.datetime, '"datetime"'),
        (decimal.Decimal, '"decimal"'),
        (list, '{"list":{"item_type":"any"}}'),
        (list[int], '{"list":{"item_type":"int"}}'),
        (set[str], '{"set":{"item_type":"str"}}'),
        (frozenset[str], '{"frozenset":{"item_type":"str"}}'),
        (dict[int, bytes], '{"dict":{"key_type":"int","value_type":"bytes"}}'),
        (tuple[int, ...], '{"vartuple":{"item_type":"int"}}'),
        (tuple[int, str], '{"tuple":{"item_types":["int","str"]}}'),
        (Annotated[int, msgspec.Meta(ge=1, title="n", description="d")], '{"int":{"ge":1}}'),
        (str | int | None, '{"one_of":["int","none","str"]}'),
        (Literal["b", 1, "a"], '{"values":["a","b",1]}'),
        (Colour, '{"values":["blue","red"]}'),
        (Pair, '{"row":[["first","int"],["second","str"]]}'),
        (Options, '{"record":{"depth":{"optional":"int"}}}'),
        (Leg, '{"record":{"miles":"float","origin":"str"}}'),
        (struct(("a", int), array_like=True), '{"row":[["a","int"]]}'),
        (struct(("a", int), tag="x", tag_field="t"), '{"record":{"a":"int"},"tag":["t","x"]}'),
        (struct(("a", int, 5), omit_defaults=True), '{"record":{"a":{"default":5,"optional":"int"}}}'),
        (
            Tree,
            '{"record":{"left":{"one_of":["none",{"up":1}]},"right":{"one_of":["none",{"up":1}]},"value":"int"}}',
        ),
        (File, FILE),
    ],
    ids=name_of,
)
def test_wording_is_pinned(type_: Any, schema: str) -> None:
    """These texts lie in the commits of others: one that changes, here or in msgspec, locks them out."""
    assert schema_of(type_) == schema


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(struct(("a", int), name="A"), struct(("a", int), name="B"), id="renamed class"),
        pytest.param(struct(("a", int)), struct(("a", int), namespace={"__doc__": "x"}), id="docstring"),
        pytest.param(struct(("a", int), ("b", str)), struct(("b", str), ("a", int)), id="order of a record's fields"),
        pytest.param(struct(("a", int)), struct(("a", int, 5)), id="default of a field that is always there"),
        pytest.param(struct(("a", int)), struct(("x", int), rename={"x": "a"}), id="field renamed in Python only"),
        pytest.param(struct(("origin", str), ("miles", float)), Leg, id="struct and dataclass"),
        pytest.param(int | str, str | int, id="order of a union"),
        pytest.param(Literal["a", "b"], Literal["b", "a"], id="order of a literal"),
        pytest.param(
            struct(("a", int), name="A", tag="a") | struct(("a", int), name="B", tag="b"),
            struct(("a", int), name="C", tag="b") | struct(("a", int), name="D", tag="a"),
            id="renamed classes with tags",
        ),
        pytest.param(int, Annotated[int, msgspec.Meta(description="flights")], id="description"),
    ],
)
def test_equal_where_stored_values_look_the_same(one: Any, other: Any) -> None:
    """Names of classes and documentation may change freely."""
    assert schema_of(one) == schema_of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(int, float, id="int and float"),
        pytest.param(str, bytes, id="str and bytes"),
        pytest.param(str, dt.datetime, id="str and datetime"),
        pytest.param(int, int | None, id="optional"),
        pytest.param(list[int], set[int], id="list and set"),
        pytest.param(dict[str, int], dict[int, int], id="keys of a dict"),
        pytest.param(struct(("a", int)), struct(("a", str)), id="type of a field"),
        pytest.param(struct(("a", int)), struct(("b", int)), id="name of a field"),
        pytest.param(struct(("a", int)), struct(("a", int), ("b", int)), id="another field"),
        pytest.param(struct(("a", list[int])), struct(("a", list[str])), id="type inside a field"),
        pytest.param(struct(("a", int)), struct(("a", int), array_like=True), id="map and array"),
        pytest.param(
            struct(("a", int), ("b", int), array_like=True),
            struct(("b", int), ("a", int), array_like=True),
            id="order of a row's fields",
        ),
        pytest.param(
            struct(("a", int, 5), omit_defaults=True),
            struct(("a", int, 6), omit_defaults=True),
            id="default of a field that is left out",
        ),
        pytest.param(struct(("a", int), tag="x"), struct(("a", int), tag="y"), id="tag"),
        pytest.param(Literal["a"], Literal["a", "b"], id="values of a literal"),
        pytest.param(int, Annotated[int, msgspec.Meta(ge=1)], id="constraint"),
    ],
)
def test_different_where_stored_values_would_be_misread(one: Any, other: Any) -> None:
    """Or not read at all."""
    assert schema_of(one) != schema_of(other)


@pytest.mark.parametrize("name", ["title", "description", "properties", "default", "record", "$ref", "up", "tag"])
def test_no_field_name_is_special(name: str) -> None:
    """A user's field is kept, whatever it is called."""
    with_field = struct(("a", int), ("x", str), rename={"x": name})
    assert schema_of(with_field) != schema_of(struct(("a", int)))
    assert schema_of(with_field) != schema_of(struct(("a", int), ("x", bytes), rename={"x": name}))


def test_equal_in_every_process() -> None:
    """Whatever the hash seed is: sets have another order in each."""
    code = (
        "from typing import Literal; from statebackend._codec.schema import schema_of\n"
        "print(schema_of(dict[str, int | str | None | list[Literal['a', 'b', 'c', 1, 2]]]))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in (1, 2, 3)
    }
    assert len(texts) == 1


# ------------------------------------------------------------------------------------- read as another type


class NewPair(NamedTuple):
    first: int
    second: str
    third: int = 7


class MoreOptions(TypedDict, total=False):
    depth: int
    width: int


class NowRequired(TypedDict):
    depth: int


class Palette(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


def tagged(name: str, *fields: Any) -> type[msgspec.Struct]:
    """One of a union."""
    return struct(*fields, name=name, tag=name)


COMPATIBLE = [
    pytest.param(struct(("a", int)), struct(("a", int), ("b", str, "x")), {"a": 1}, id="field with a default added"),
    pytest.param(struct(("a", int), ("b", str)), struct(("a", int)), {"a": 1, "b": "x"}, id="field removed"),
    pytest.param(struct(("a", int)), struct(("b", int, 1)), {"a": 1}, id="one for the other"),
    pytest.param(struct(("a", int)), struct(("a", int | None)), {"a": 1}, id="field became optional"),
    pytest.param(list[struct(("a", int))], list[struct(("a", int), ("b", int, 1))], [{"a": 1}], id="inside a list"),
    pytest.param(
        dict[str, struct(("a", int))], dict[str, struct(("a", int), ("b", int, 1))], {"k": {"a": 1}}, id="inside a dict"
    ),
    pytest.param(
        tuple[int, struct(("a", int))],
        tuple[int, struct(("a", int), ("b", int, 1))],
        [1, {"a": 1}],
        id="inside a tuple",
    ),
    pytest.param(int, int | None, 1, id="type became one of a union"),
    pytest.param(int | str, int | str | None, "x", id="union got one more"),
    pytest.param(
        tagged("A") | tagged("B"),
        tagged("A") | tagged("B", ("b", int, 1)) | tagged("C"),
        {"type": "B"},
        id="of a union",
    ),
    pytest.param(Colour, Palette, "red", id="enum got one more"),
    pytest.param(Literal["a"], Literal["a", "b"], "a", id="literal got one more"),
    pytest.param(Pair, NewPair, [1, "x"], id="named tuple got one more"),
    pytest.param(
        struct(("a", int), array_like=True), struct(("a", int), ("b", int, 1), array_like=True), [1], id="longer row"
    ),
    pytest.param(
        struct(("a", int), ("b", int), array_like=True), struct(("a", int), array_like=True), [1, 2], id="shorter row"
    ),
    pytest.param(Options, MoreOptions, {}, id="typed dict got one more"),
    pytest.param(
        struct(("a", int, 5), omit_defaults=True),
        struct(("a", int, 5), ("b", int, 1)),
        {},
        id="same default of a field that is left out",
    ),
    pytest.param(
        struct(("a", float, math.nan), omit_defaults=True),
        struct(("a", float, math.nan), ("b", int, 1), omit_defaults=True),
        {},
        id="NaN as the default of a field that is left out",
    ),
    pytest.param(
        Tree, msgspec.defstruct("Tree", [("value", int), ("size", int, 0)]), {"value": 1}, id="recursion removed"
    ),
]

INCOMPATIBLE = [
    pytest.param(struct(("a", int)), struct(("a", int), ("b", str)), id="field without a default added"),
    pytest.param(struct(("a", int)), struct(("a", str)), id="another type of a field"),
    pytest.param(int, float, id="int as float"),
    pytest.param(int | None, int, id="union lost one"),
    pytest.param(Palette, Colour, id="enum lost one"),
    pytest.param(struct(("a", int), ("b", int)), struct(("a", int), forbid_unknown_fields=True), id="forbids the rest"),
    pytest.param(NewPair, Pair, id="named tuple lost one"),
    pytest.param(
        struct(("a", int), ("b", int), array_like=True),
        struct(("b", int), ("a", int), array_like=True),
        id="row in another order",
    ),
    pytest.param(
        struct(("a", int), array_like=True), struct(("a", int), ("b", int), array_like=True), id="row without a default"
    ),
    pytest.param(struct(("a", int)), struct(("a", int), array_like=True), id="record as row"),
    pytest.param(struct(("a", int), tag="x"), struct(("a", int), tag="y"), id="another tag"),
    pytest.param(struct(("a", int)), struct(("a", int), tag="y"), id="a tag now"),
    pytest.param(Options, NowRequired, id="required now"),
    pytest.param(
        struct(("a", int, 5), omit_defaults=True),
        struct(("a", int, 6)),
        id="another default of a field that is left out",
    ),
    pytest.param(
        struct(("a", int, 5), omit_defaults=True), struct(("a", int)), id="no default of one that is left out"
    ),
    pytest.param(Annotated[int, msgspec.Meta(ge=1)], Annotated[int, msgspec.Meta(ge=2)], id="another constraint"),
    pytest.param(int, Annotated[int, msgspec.Meta(ge=1)], id="a constraint now"),
    pytest.param(list[int], set[int], id="list as set"),
    pytest.param(tuple[int, int], tuple[int, int, int], id="longer tuple"),
    pytest.param(dict[str, int], dict[int, int], id="keys of a dict"),
    pytest.param(list[int], list[str], id="inside a list"),
    pytest.param(struct(("a", int)), Any, id="anything"),
]


@pytest.mark.parametrize(("old", "new", "value"), COMPATIBLE)
def test_read_as_another_type(old: Any, new: Any, value: Any) -> None:
    """Nothing against it; and msgspec, which does the reading, agrees."""
    assert misread(schema_of(old), new) is None
    data = msgspec.msgpack.encode(msgspec.convert(value, old))
    msgspec.msgpack.decode(data, type=new)


@pytest.mark.parametrize(("old", "new"), INCOMPATIBLE)
def test_not_read_as_another_type(old: Any, new: Any) -> None:
    """What would be lost, refused or changed is refused, with where it is."""
    reason = misread(schema_of(old), new)
    assert reason is not None
    assert reason.startswith("value")


@pytest.mark.parametrize(
    "type_", [int, str | None, list[int], Pair, Options, Leg, Tree, File, Colour, tagged("A")], ids=name_of
)
def test_every_type_reads_itself(type_: Any) -> None:
    """Recursive ones too."""
    assert misread(schema_of(type_), type_) is None


FIELD_TYPES = st.sampled_from(
    [int, str, int | None, list[int], list[int | None], Literal["a"], Literal["a", "b"], float]
)
FIELDS = st.dictionaries(st.sampled_from("abc"), st.tuples(FIELD_TYPES, st.booleans()), max_size=3)
EXAMPLES: dict[Any, list[Any]] = {
    int: [0, -7],
    str: ["a", "x"],
    int | None: [None, 3],
    list[int]: [[], [1]],
    list[int | None]: [[None], [1]],
    Literal["a"]: ["a"],
    Literal["a", "b"]: ["a", "b"],
    float: [1.5],
}


@settings(deadline=None, max_examples=300)
@given(FIELDS, FIELDS, st.booleans(), st.booleans(), st.data())
def test_what_may_be_read_is_read(old: Any, new: Any, by_position: bool, forbids: bool, data: st.DataObject) -> None:
    """Random records and rows: where nothing is against it, values written as the one decode as the other."""

    def made(fields: Any, **options: Any) -> type[msgspec.Struct]:
        ordered = sorted(fields.items(), key=lambda field: field[1][1])  # those with a default come last
        return struct(
            *(
                (name, type_, msgspec.field(default_factory=lambda type_=type_: EXAMPLES[type_][0]))
                if default
                else (name, type_)
                for name, (type_, default) in ordered
            ),
            array_like=by_position,
            **options,
        )

    old_type, new_type = made(old), made(new, forbid_unknown_fields=forbids)
    if misread(schema_of(old_type), new_type) is not None:
        return
    values = {name: data.draw(st.sampled_from(EXAMPLES[type_])) for name, (type_, _) in old.items()}
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(old_type(**values)), type=new_type)
    for name, (type_, _) in new.items():
        assert getattr(found, name) == values.get(name, EXAMPLES[type_][0])


@pytest.mark.parametrize("depth", [0, 1000, 10_000])
def test_a_stored_schema_that_is_none_is_a_reason_and_no_crash(depth: int) -> None:
    """Nested deeper than Python recurses, or not JSON at all."""
    assert misread("[" * depth + "]" * (depth - 1), int) is not None
    assert misread('{"list":{"item_type":' * depth + '"int"' + "}}" * depth, list[int]) is not None


@pytest.mark.parametrize("depth", [TYPE_DEPTH_MAX, 10_000, 100_000])
def test_a_type_nested_too_deeply_is_refused(depth: int) -> None:
    """When it is declared, before anything is stored with it. To hash a type of 100,000 levels ends the process."""
    for type_ in (deep(depth), struct(("within", deep(depth)))):
        with pytest.raises(InputError, match="nested too deeply"):
            MsgspecSerializer(type_)


def test_a_type_is_looked_at_once_in_whatever_ways_it_is_reached() -> None:
    """Doubled forty times, and around itself. The depth is that of the shortest way."""
    doubled: Any = Tree
    for _ in range(40):
        doubled = dict[str, tuple[doubled, doubled]]
    check_depth(doubled)
    check_depth(deep(TYPE_DEPTH_MAX - 1))


def deep(depth: int) -> Any:
    """Lists within lists."""
    nested: Any = int
    for _ in range(depth):
        nested = list[nested]
    return nested
