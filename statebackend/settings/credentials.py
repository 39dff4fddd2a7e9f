"""Credentials: a text that is never shown, and those that end, which a function of the user returns.

    s3.credentials = fetch, or "module:function"  ->  CredentialSource  ->  S3Credentials(..., ends_at_s=...)

The function may be `async def`. It is called before the credentials end, where they are needed: in the driver, in the
workers of executors, in readers, in the command line. So it has to be found there, and its result travels nowhere.
"""

import importlib
import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import msgspec

from statebackend.errors import SettingsError


class S3Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """Keys for S3, as the function of `s3.credentials` returns them.

    `ends_at_s`: when they end, in seconds since the epoch.
    """

    access_key_id: str
    secret_access_key: str
    session_token: str = ""
    ends_at_s: float

    def __repr__(self) -> str:
        return "S3Credentials(...)"


class AzureCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """A shared access signature or a token of Entra ID, as the function of `azure.credentials` returns it.

    `ends_at_s`: when it ends, in seconds since the epoch.
    """

    sas_token: str = ""
    bearer_token: str = ""
    ends_at_s: float

    def __repr__(self) -> str:
        return "AzureCredentials(...)"


Fetch = Callable[[], Any | Awaitable[Any]]


class CredentialSource:
    """A function without arguments, or its name as `module:function`.

    It pickles as functions do: by its name, or by value in a notebook. Copies that were pickled are equal, and
    share the credentials that one of them was given in a process. Raises `SettingsError` for anything else.
    """

    __slots__ = ("_function", "_stamp")

    def __init__(self, function: Fetch | str) -> None:
        self._function: Final = function
        if isinstance(function, str):
            module, _, name = function.partition(":")
            if not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
                raise SettingsError("credentials come from a function, which text names as module:function")
        elif not callable(function):
            raise SettingsError("credentials come from a function without arguments, or its name as module:function")
        self._stamp: Final = function if isinstance(function, str) else secrets.token_hex(16)

    def function(self) -> Fetch:
        """The function itself. Raises `SettingsError` if there is none of that name here."""
        if not isinstance(self._function, str):
            return self._function
        module, _, name = self._function.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            said = f"the function for credentials cannot be imported here: {error}"
            raise SettingsError(said, name=self._function) from error
        if not callable(found):
            raise SettingsError("the name for credentials is not that of a function", name=self._function)
        return cast("Fetch", found)

    def __repr__(self) -> str:
        return "CredentialSource(...)"  # a partial function would show its arguments

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CredentialSource) and (
            self._stamp == other._stamp or self._function is other._function
        )

    def __hash__(self) -> int:
        return hash(CredentialSource)  # of functions, one may have several stamps

    def __copy__(self) -> "CredentialSource":
        return self

    def __deepcopy__(self, memo: Any) -> "CredentialSource":
        return self

    def __getstate__(self) -> tuple[Fetch | str, str]:
        return self._function, self._stamp

    def __setstate__(self, state: tuple[Fetch | str, str]) -> None:
        for name, value in zip(("_function", "_stamp"), state, strict=True):
            object.__setattr__(self, name, value)


def foreign_of(kind: type, value: Any) -> Any:
    """Convert a value to a `Secret` or a `CredentialSource`, for msgspec. The error shows no value."""
    if kind is not CredentialSource:
        return secret_of(kind, value)
    if isinstance(value, CredentialSource):
        return value
    try:
        return CredentialSource(value)
    except SettingsError as error:
        raise ValueError(error.message) from None


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
