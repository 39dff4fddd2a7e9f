"""States as the calls of an asynchronous `process` see them: each its own key's, and changes in the order of the keys.

    kind                     a write is seen                        and logged
    by key, in entries       at once: it is the call's own key      in the order of the keys: `arrange`, at the end
    columnar                 at once, by the call                   applied at the end, in the order of the keys
    operator state           by the next batch                      applied at the end, in the order of the keys

So neither the changes nor the entries' order tell which call was the first to end. Code that is alone (`open`,
`open_batch`, `on_timer` and so on) uses all of a state, as without calls, and writes to it at once: `settle` may have
been before.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

from statebackend._checkpoint.backend import KeyedBackend
from statebackend._processing.calls import Turns
from statebackend._state.bulk_arguments import keys_as_list
from statebackend._state.kinds.every_kind import KeyedState
from statebackend._state.kinds.list_state import ListState, ListView
from statebackend._state.kinds.map_state import MapState, MapView
from statebackend._state.kinds.operator_state import OperatorState
from statebackend.ids import Key

_GONE: Final = object()


class OwnStates:
    """A backend that declares states for calls. All but the declarations are those of `backend`."""

    def __init__(self, backend: KeyedBackend) -> None:
        self.turns: Final = Turns()
        self._backend: Final = backend
        self._declared: dict[str, Any] = {}

    def settle(self, ranks: Mapping[Key, int]) -> None:
        """Apply and order what the calls of a batch have written, as if they had run one by one in this order."""
        for state in self._declared.values():
            state.settle(ranks)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        if name != "timers" and not name.endswith("_state"):
            return found

        def declare(*args: Any, **options: Any) -> Any:
            return self._own(found(*args, **options))

        return declare

    def _own(self, state: Any) -> Any:
        """The state as calls see it: the same object each time, as of the backend."""
        name = state.name
        if name not in self._declared:
            kinds: dict[type, type[OwnState]] = {ListState: OwnLists, MapState: OwnMaps, OperatorState: OwnElements}
            other = OwnEntries if isinstance(state, cast("type[Any]", KeyedState)) else OwnColumns
            self._declared[name] = kinds.get(type(cast("object", state)), other)(state, self.turns)
        return self._declared[name]


class OwnState:
    """A state of any kind. What is not defined here or below is about all keys, and for code that is alone."""

    def __init__(self, state: Any, turns: Turns) -> None:
        self._state: Final = state
        self._turns: Final = turns
        self._check: Final = turns.check

    @property
    def name(self) -> str:
        """The name of the state."""
        return cast("str", self._state.name)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._state, name)
        self._turns.check_all(name)
        return found

    def __iter__(self) -> Any:
        self._turns.check_all("iterating")
        return iter(self._state)

    def __len__(self) -> int:
        self._turns.check_all("len")
        return len(self._state)

    def __repr__(self) -> str:
        return repr(self._state)


def _of_one_key(name: str) -> Any:
    def method(self: "OwnEntries", key: Key, *args: Any, **options: Any) -> Any:
        self._check(key)  # pyright: ignore[reportPrivateUsage]
        return getattr(self._state, name)(key, *args, **options)  # pyright: ignore[reportPrivateUsage]

    method.__name__ = name
    return method


def _of_many_keys(name: str) -> Any:
    def method(self: "OwnEntries", keys: Iterable[Key], *args: Any, **options: Any) -> Any:
        keys = keys_as_list(keys)
        for key in keys:
            self._check(key)  # pyright: ignore[reportPrivateUsage]
        return getattr(self._state, name)(keys, *args, **options)  # pyright: ignore[reportPrivateUsage]

    method.__name__ = name
    return method


class OwnEntries(OwnState):
    """A value, list, map, reducing or aggregating state, or timers: the methods that any of these has for one key."""

    def __getitem__(self, key: Key) -> Any:
        self._check(key)
        return self._state[key]

    def __setitem__(self, key: Key, value: Any) -> None:
        self._check(key)
        self._state[key] = value

    def __delitem__(self, key: Key) -> None:
        self._check(key)
        del self._state[key]

    def __contains__(self, key: Key) -> bool:
        self._check(key)
        return key in self._state

    def get(self, key: Key, default: Any = None) -> Any:
        """As the state's own."""
        self._check(key)
        return self._state.get(key, default)

    pop = _of_one_key("pop")
    setdefault = _of_one_key("setdefault")
    add = _of_one_key("add")
    append = _of_one_key("append")
    extend = _of_one_key("extend")
    read = _of_one_key("read")
    length = _of_one_key("length")
    remove = _of_one_key("remove")
    put = _of_one_key("put")
    read_entry = _of_one_key("read_entry")
    remove_entry = _of_one_key("remove_entry")
    entry_keys = _of_one_key("entry_keys")
    has_entry = _of_one_key("has_entry")
    register = _of_one_key("register")
    delete = _of_one_key("delete")
    registered = _of_one_key("registered")

    get_many = _of_many_keys("get_many")
    put_many = _of_many_keys("put_many")
    update_many = _of_many_keys("update_many")
    add_many = _of_many_keys("add_many")
    append_many = _of_many_keys("append_many")
    extend_many = _of_many_keys("extend_many")
    register_many = _of_many_keys("register_many")

    def settle(self, ranks: Mapping[Key, int]) -> None:
        """As `OwnStates.settle`."""
        self._state.arrange(ranks)


class OwnLists(OwnEntries):
    """A list state, whose views check each use, too."""

    def __getitem__(self, key: Key) -> Any:
        self._check(key)
        return ListView(cast("Any", self), key)

    def get(self, key: Key, default: Any = None) -> Any:
        """A view, as of the state itself."""
        return self[key]


class OwnMaps(OwnEntries):
    """A map state, whose views check each use, too."""

    def __getitem__(self, key: Key) -> Any:
        self._check(key)
        return MapView(cast("Any", self), key)

    def get(self, key: Key, default: Any = None) -> Any:
        """A view, as of the state itself."""
        return self[key]


class OwnColumns(OwnState):
    """A columnar state: the row of the call's key, as a mapping. `_written`: what calls have set, until `settle`."""

    def __init__(self, state: Any, turns: Turns) -> None:
        super().__init__(state, turns)
        self._written: dict[Key, Any] = {}

    def __getitem__(self, key: Key) -> Any:
        self._check(key)
        written = self._written.get(key)
        if written is _GONE:
            raise KeyError(key)
        return self._state[key] if written is None else dict(written)

    def __setitem__(self, key: Key, row: Mapping[str, Any]) -> None:
        self._check(key)
        if self._turns.call() is None:
            self._state[key] = row
        else:
            self._written[key] = self._state.checked_row(key, row)

    def __delitem__(self, key: Key) -> None:
        self._check(key)
        if self._turns.call() is None:
            del self._state[key]
        elif key in self:
            self._written[key] = _GONE
        else:
            raise KeyError(key)

    def __contains__(self, key: Key) -> bool:
        self._check(key)
        written = self._written.get(key)
        return key in self._state if written is None else written is not _GONE

    def get(self, key: Key, default: Any = None) -> Any:
        """The row of the key, or `default`."""
        try:
            return self[key]
        except KeyError:
            return default

    def pop(self, key: Key, *default: Any) -> Any:
        """Remove the key's row and return it; without one, return `default` or raise `KeyError`."""
        if default and key not in self:
            return default[0]
        row = self[key]
        del self[key]
        return row

    def settle(self, ranks: Mapping[Key, int]) -> None:
        """As `OwnStates.settle`."""
        written, self._written = self._written, {}
        for key in sorted(written, key=ranks.__getitem__):
            if written[key] is not _GONE:
                self._state[key] = written[key]
            else:
                self._state.pop(key, None)
        self._state.arrange()


class OwnElements(OwnState):
    """Operator state. A call reads it as it was when the batch began."""

    def __init__(self, state: Any, turns: Turns) -> None:
        super().__init__(state, turns)
        self._steps: list[tuple[int, Callable[..., None], list[Any]]] = []

    def append(self, element: Any) -> None:
        """Append one element."""
        self._change(self._state.extend, [element])

    def extend(self, elements: Iterable[Any]) -> None:
        """Append all of them, or none."""
        self._change(self._state.extend, elements)

    def replace(self, elements: Iterable[Any]) -> None:
        """Replace all elements by these."""
        self._change(self._state.replace, elements)

    def clear(self) -> None:
        """Remove every element."""
        self._change(self._state.replace, [])

    def __iter__(self) -> Any:
        self._turns.call()
        return iter(self._state)

    def __len__(self) -> int:
        self._turns.call()
        return len(self._state)

    def __getitem__(self, index: int | slice) -> Any:
        self._turns.call()
        return self._state[index]

    def settle(self, ranks: Mapping[Key, int]) -> None:
        """As `OwnStates.settle`."""
        steps, self._steps = self._steps, []
        for _, change, elements in sorted(steps, key=lambda step: step[0]):
            change(elements)

    def _change(self, change: Callable[..., None], elements: Iterable[Any]) -> None:
        call = self._turns.call()
        if call is None:
            change(elements)
        else:
            self._steps.append((call.rank, change, self._state.copies(elements)))
