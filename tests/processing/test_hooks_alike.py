"""What the hooks around `process` do to the state is the same whether `process` is asynchronous or not."""

from typing import Any

import anyio
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend._processing.processor import KeyedProcessor, ProcessorContext
from statebackend.testing import ProcessorTester

COLUMNS = pa.schema([("n", pa.int64())])
ROWS = pa.schema([("key", pa.string()), ("at", pa.timestamp("s", tz="UTC"))])
KEYS = "abc"
BY_KEY = ("set", "add", "pop", "delete", "tell")
"""Deeds that `process` may do, too: with its own key."""
HOOKS = ("open_batch", "process", "process_late", "on_timer", "close_batch")

Deed = tuple[str, str, str]
"""By which hook, with which key, and what."""
Batch = tuple[list[tuple[str, int]], list[Deed]]
"""Rows, each a key and its time, and what is done in the batch."""


class Doing(KeyedProcessor):
    """Does in each batch what was drawn for it, to columnar state, value state and operator state."""

    output_schema = pa.schema([("told", pa.string())])

    def __init__(self, batches: list[Batch]) -> None:
        self._deeds = [deeds for _, deeds in batches]

    def open(self, context: ProcessorContext) -> None:
        self.rows = context.columnar_state("rows", COLUMNS, key=pa.string())
        self.values = context.value_state("values", int)
        self.told = context.operator_state("told", str)
        self.ends = context.timers("ends")

    def open_batch(self, context: ProcessorContext) -> None:
        for key in KEYS:
            self._do("open_batch", key, context)

    def process(self, key: Any, rows: Any, context: ProcessorContext) -> Any:
        told = self._do("process", key, context)
        self.ends.register(key, context.clock_s + 1)
        return told

    def process_late(self, key: Any, rows: Any, context: ProcessorContext) -> Any:
        return self._do("process_late", key, context)

    def on_timer(self, key: Any, at: float, context: ProcessorContext) -> Any:
        return self._do("on_timer", key, context)

    def close_batch(self, context: ProcessorContext) -> None:
        for key in KEYS:
            self._do("close_batch", key, context)

    def _do(self, hook: str, key: str, context: ProcessorContext) -> list[dict[str, str]]:
        found = [deed for at, of, deed in self._deeds[context.batch_id] if (at, of) == (hook, key)]
        told: list[str] = [f"{hook} {key} {deed} {self._did(deed, key)}" for deed in found]
        if hook != "process":
            self.told.extend(told)
        return [{"told": each} for each in told]

    def _did(self, deed: str, key: str) -> Any:
        row = self.rows.get(key)
        match deed:
            case "set":
                self.rows[key], self.values[key] = {"n": 1}, 1
            case "add" if row is not None:
                self.rows[key] = {"n": row["n"] + 1}
            case "pop":
                return self.rows.pop(key, None), self.values.pop(key, None)
            case "delete" if key in self.rows:
                del self.rows[key]
            case "merge":
                return self.rows.merge(pa.table({"k": list(KEYS)}), on="k", how={"n": "count"}).to_pylist()
            case "clear":
                self.rows.clear()
            case _:
                pass
        return row


class Awaiting(Doing):
    """The same, and the last key is the first to be done."""

    async def process(self, key: Any, rows: Any, context: ProcessorContext) -> Any:  # type: ignore[override]
        await anyio.sleep(ord("z") - ord(key))
        return super().process(key, rows, context)


def told_and_left(processor: Doing, batches: list[Batch]) -> list[Any]:
    """The output of each batch, and the state that a restart finds after it."""
    found: list[Any] = []
    with ProcessorTester(processor, key="key", event_time="at", lateness_s=0.0, late="output") as tester:
        for rows, _ in batches:
            found.append(tester.batch(pa.Table.from_pylist([{"key": key, "at": at} for key, at in rows], ROWS)))
            tester.restart()
            backend = tester.backend()
            found.append(dict(sorted(backend.columnar_state("rows", COLUMNS, key=pa.string()).items())))
            found.append(sorted(backend.value_state("values", int).items()))
            found.append(list(backend.operator_state("told", str)))
    return found


by_key = st.tuples(st.sampled_from(HOOKS), st.sampled_from(KEYS), st.sampled_from(BY_KEY))
to_all = st.tuples(
    st.sampled_from([hook for hook in HOOKS if hook != "process"]),
    st.sampled_from(KEYS),
    st.sampled_from(["merge", "clear"]),
)
batch = st.tuples(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 9)), min_size=1, max_size=4),
    st.lists(st.one_of(by_key, by_key, to_all), max_size=8),
)


@settings(max_examples=20)
@given(batches=st.lists(batch, min_size=1, max_size=3))
def test_hooks_leave_what_they_leave_beside_a_synchronous_process(batches: list[Batch]) -> None:
    """In memory, in what is committed, and in what they put out."""
    assert told_and_left(Awaiting(batches), batches) == told_and_left(Doing(batches), batches)
