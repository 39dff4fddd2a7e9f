"""A text that is never shown: credentials in settings."""

from typing import Any


class Secret:
    """A text that never appears in a `repr`, a message or a pickle.

    Settings travel to executors and into files as pickles. The secret stays behind: in the unpickled copy `reveal()`
    is `None`, and the code that needs the secret asks the machine it runs on instead. For `s3://` that is the usual
    AWS chain (variables, profile, role).
    """

    __slots__ = ("_text",)

    def __init__(self, text: str | None) -> None:
        self._text = text

    def reveal(self) -> str | None:
        """The text, or `None` if this secret was unpickled. Only the code that sends it should call this."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: Any) -> "Secret":
        return self

    def __reduce__(self) -> tuple[type["Secret"], tuple[None]]:
        return Secret, (None,)


def secret_of(_kind: type, value: Any) -> Secret:
    """Convert a text to a `Secret`, for msgspec, which meets no other foreign type here. The error shows no value."""
    if isinstance(value, Secret):
        return value
    if isinstance(value, str) and value:
        return Secret(value)
    raise ValueError("a secret is a text that is not empty")
