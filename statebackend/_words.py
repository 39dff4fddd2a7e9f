"""The errors of msgspec in the words of Python: a dict is an `object` there, a list an `array`, `None` is `null`."""

import re
from typing import Final

_JSON: Final = re.compile(r"\b(object|array|null)\b")
_PYTHON: Final = {"object": "dict", "array": "list", "null": "None"}


def in_python_words(error: Exception) -> str:
    """The text of an error of msgspec, with the types that it expected and got named as in Python."""
    said, at, place = str(error).partition(" - at ")
    return (_JSON.sub(_in_python, said) if said.startswith("Expected `") else said) + at + place


def _in_python(found: re.Match[str]) -> str:
    return _PYTHON[found[0]]
