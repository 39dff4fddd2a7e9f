"""Keywords that several functions take alike: declared once, as a `TypedDict`, and shown one by one in signatures."""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def keywords_of(declared: type[Any], record: Callable[..., Any]) -> Callable[[F], F]:
    """Show the keywords of `declared` in the signature of a function that ends in `**name: Unpack[declared]`.

    `record` is what the function makes of them: it knows their defaults, and refuses any other name.
    """
    defaults = inspect.signature(record).parameters
    named = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name].default, annotation=annotation)
        for name, annotation in declared.__annotations__.items()
    ]

    def show(function: F) -> F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        function.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
        return function

    return show
