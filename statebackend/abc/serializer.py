"""The bytes of a value in storage."""

from typing import Protocol, TypeVar

from statebackend.abc.store import Buffer

T = TypeVar("T")


class Serializer(Protocol[T]):
    """Turns values into bytes and back, without side effects, on the thread that touches the state."""

    @property
    def schema(self) -> str:
        """A description of the type that is the same in every run. Stored with each commit and compared."""
        ...

    def encode(self, value: T) -> bytes:
        """Return the bytes of `value`. Raises `ValueEncodeError`."""
        ...

    def decode(self, data: Buffer) -> T:
        """Return a new value. Raises `ValueDecodeError`."""
        ...
