"""Modules that the library imports and the site does without: half a gigabyte, to name a few classes.

Sphinx can mock modules too, but its mocks know no `X | None`.
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

ABSENT: Final = ("pyspark", "py4j", "pandas")


class Anything:
    """Can be made, called and asked for attributes."""

    def __init__(self, *arguments: object, **named: object) -> None:
        pass

    def __call__(self, *arguments: object, **named: object) -> "Anything":
        return Anything()

    def __getattr__(self, name: str) -> "Anything":
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class AbsentModule(ModuleType):
    """Has a class for every name that is asked for, or a module where the name begins small."""

    __path__: Sequence[str] = ()
    __version__ = "4.3.0"

    def __getattr__(self, name: str) -> type | ModuleType:
        if name.startswith("__"):
            raise AttributeError(name)
        if name.islower():
            return import_module(f"{self.__name__}.{name}")
        found = type(name, (Anything,), {"__module__": self.__name__})
        setattr(self, name, found)
        return found


class AbsentModules(MetaPathFinder, Loader):
    """Finds these modules before anything else does, also where they are installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname.partition(".")[0] in ABSENT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def make_absent() -> None:
    """From here on."""
    sys.meta_path.insert(0, AbsentModules())
