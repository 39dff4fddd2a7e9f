"""What is sent to workers arrives whole, also classes that they have no module for."""

import subprocess
import sys
import threading

import msgspec
import pytest

from statebackend.errors import SettingsError
from statebackend.spark.executors.pickling import pickled, unpickled
from tests.examples import name_of

MAIN = """
import sys
import msgspec
from statebackend.spark.executors.pickling import pickled

class Leg(msgspec.Struct, frozen=True, order=True):
    "One flight."
    dest: str
    flown: int = 1
    via: list[str] = msgspec.field(default_factory=list)
    note: str | None = msgspec.field(default=None, name="n")

    def __post_init__(self):
        if self.flown < 1:
            raise ValueError("flown")

    def again(self):
        return Leg(self.dest, self.flown + 1)

    @property
    def is_direct(self):
        return not self.via

    @classmethod
    def to(cls, dest):
        return cls(dest)

class Long(Leg, frozen=True, kw_only=True):
    stops: int = 2

class Tagged(msgspec.Struct, kw_only=True, array_like=True, tag="t", gc=False):
    leg: Leg
    legs: dict[str, Leg]

def tell():
    leg = Leg("EWR", 3).again()
    tagged = msgspec.json.decode(msgspec.json.encode(Tagged(leg=leg, legs={"a": Leg.to("SFO")})), type=Tagged)
    try:
        Leg("EWR", 0)
    except ValueError as error:
        refused = str(error)
    long = Long("PEK", stops=3)
    legs = leg, leg.is_direct, Leg.__doc__, Leg("A") < Leg("B"), msgspec.json.encode(leg), type(leg) is Leg
    longs = long, long.is_direct, isinstance(long, Leg), msgspec.json.encode(long)
    return repr((refused, legs, longs, tagged, Tagged.__struct_config__.gc, Leg.__name__))

sys.stdout.write(tell() + "\\n")
sys.stdout.flush()
sys.stdout.buffer.write(pickled(tell))
"""


def test_struct_classes_of_a_main_script_arrive_with_fields_options_and_methods() -> None:
    """A plain cloudpickle loses their fields. The script is a process of its own, and this one is the worker."""
    sent = subprocess.run([sys.executable, "-c", MAIN], check=True, capture_output=True).stdout
    told, _, function = sent.partition(b"\n")
    assert unpickled(function)() == told.decode()


def test_a_class_that_a_module_has_is_sent_by_name() -> None:
    """It is the same class on arrival, as for everything else that can be imported."""
    assert unpickled(pickled(msgspec.structs.FieldInfo)) is msgspec.structs.FieldInfo


USED = """
import dataclasses, enum, sys
from typing import Annotated, Generic, NamedTuple, TypedDict, TypeVar
import msgspec
from statebackend.spark.executors.pickling import pickled

T = TypeVar("T")
class Named(NamedTuple):
    n: int
class Typed(TypedDict):
    n: int
class Color(enum.Enum):
    RED = 1
class Word(enum.Enum):
    A = "a"
@dataclasses.dataclass
class Data:
    n: int
class Box(msgspec.Struct, Generic[T]):
    item: T
class IntBox(Box[int]):
    pass
class Positive(msgspec.Struct):
    n: Annotated[int, msgspec.Meta(gt=0, title="t", extra={"a": 1})]

VALUES = [
    (Named, Named(1)), (Typed, {"n": 1}), (Color, Color.RED), (Word, Word.A), (Data, Data(1)), (Box[int], Box(1)),
    (IntBox, IntBox(2)), (Positive, Positive(3)), (Annotated[str, msgspec.Meta(max_length=1)], "a"),
]

def tell():
    told = []
    for type_, value in VALUES:
        assert msgspec.json.decode(msgspec.json.encode(value), type=type_) == value
        told.append(repr(value))
    for wrong, type_ in ((b'{"n":0}', Positive), (b'{"item":"x"}', Box[int]), (b'"ab"', VALUES[-1][0])):
        try:
            msgspec.json.decode(wrong, type=type_)
        except msgspec.ValidationError as error:
            told.append(str(error))
    return repr(told)

fresh = pickled(tell)
sys.stdout.write(tell() + "\\n")
sys.stdout.flush()
for each in (fresh, pickled(tell)):
    sys.stdout.buffer.write(len(each).to_bytes(8) + each)
"""


def test_classes_that_msgspec_has_used_arrive_as_those_that_it_has_not() -> None:
    """It leaves a cache in each, as when the processor of a notebook was tested before it is sent."""
    sent = subprocess.run([sys.executable, "-c", USED], check=True, capture_output=True).stdout
    told, _, functions = sent.partition(b"\n")
    size = int.from_bytes(functions[:8])
    fresh, used = functions[8 : 8 + size], functions[16 + size :]
    for function in (fresh, used):
        assert unpickled(function)() == told.decode()


RECURSIVE = msgspec.defstruct("Node", [("inner", "Node | None")], module="__main__")


@pytest.mark.parametrize("what", [threading.Lock(), RECURSIVE], ids=name_of)
def test_what_cannot_be_sent_is_a_clear_error(what) -> None:
    """In the driver, before any task runs."""
    with pytest.raises(SettingsError, match="cannot be sent to the workers"):
        pickled(what)
