"""The bytes of a value in storage."""

from typing import Protocol, TypeVar

from statebackend.abc.store import Buffer

T = TypeVar("T")


class Serializer(Protocol[T]):
    """Values to bytes and back, without side effects. Runs on whatever thread touches the state."""

    @property
    def schema(self) -> str:
        """Describes the type in words that stay equal from run to run. Stored with each commit and compared."""
        ...

    def encode(self, value: T) -> bytes:
        """Bytes of `value`. Raises `ValueEncodeError`."""
        ...

    def decode(self, data: Buffer) -> T:
        """A fresh value. Raises `ValueDecodeError`."""
        ...
