"""What a call of an asynchronous `process` may touch: all else is refused, fails the batch, and changes nothing."""

import asyncio
import itertools
import operator
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import pyarrow as pa
import pytest

import statebackend as sb
from statebackend._codec.change_sets.parts import encode_parts
from statebackend._processing.runner import ProcessorRunner
from statebackend.errors import InputError, SettingsError, ValueEncodeError
from statebackend.ids import KeyGroupRange
from statebackend.testing import run_virtual

jobs = itertools.count()


class Mean:
    def create(self) -> tuple[int, int]:
        return 0, 0

    def add(self, accumulator, value):
        return accumulator[0] + 1, accumulator[1] + value

    def result(self, accumulator):
        return accumulator[1] / accumulator[0]

    def merge(self, accumulator, other):
        return accumulator[0] + other[0], accumulator[1] + other[1]


class Using(sb.spark.KeyedProcessor):
    """Declares a state of each kind, and has `use(self, key)` run for each key."""

    def __init__(self, use: Callable[[Any, str], Any]) -> None:
        self._use = use

    def open(self, context):
        self.values = context.value_state("values", int)
        self.lists = context.list_state("lists", int)
        self.maps = context.map_state("maps", str, int)
        self.sums = context.reducing_state("sums", int, operator.add)
        self.means = context.aggregating_state("means", Mean())
        self.rows = context.columnar_state("rows", pa.schema([("n", pa.int64())]), key=pa.string())
        self.timers = context.timers("timers")
        self.seen = context.operator_state("seen", str)

    async def process(self, key, rows, context):
        if asyncio.iscoroutine(used := self._use(self, key)):
            await used


class Job:
    """A backend, and a runner of a processor on it."""

    def __init__(self, backend: sb.StateBackend, use: Callable[[Any, str], Any], **options: Any) -> None:
        self.backend = backend
        self._runner = ProcessorRunner(Using(use), key="key", order_by=(), has_output=False, **options)

    async def batch(self, *keys: str) -> None:
        await self._runner.run(self._runner.keys_of(pa.table({"key": keys})), 0, self.backend)

    def changes(self) -> bytes:
        return bytes(encode_parts(self.backend._states.drain()))


def open_job() -> Any:
    return sb.open_backend(sb.Settings(job="j", primary=f"memory://own-{next(jobs)}", local=()))


OTHER: dict[str, Callable[[Any], Any]] = {
    "get": lambda p: p.values.get("b"),
    "[]": lambda p: p.values["b"],
    "[] =": lambda p: p.values.__setitem__("b", 1),
    "del": lambda p: p.values.__delitem__("b"),
    "in": lambda p: "b" in p.values,
    "pop": lambda p: p.values.pop("b", 1),
    "setdefault": lambda p: p.values.setdefault("b", 1),
    "get_many": lambda p: p.values.get_many(["a", "b"]),
    "put_many": lambda p: p.values.put_many(["a", "b"], [1, 2]),
    "list": lambda p: p.lists["b"],
    "list get": lambda p: p.lists.get("b"),
    "list append": lambda p: p.lists.append("b", 1),
    "map": lambda p: p.maps["b"],
    "map get": lambda p: p.maps.get("b"),
    "map put": lambda p: p.maps.put("b", "x", 1),
    "reducing": lambda p: p.sums.add("b", 1),
    "aggregating": lambda p: p.means.add("b", 1),
    "merge": lambda p: p.means.merge("a", ["b"]),
    "columns": lambda p: p.rows["b"],
    "columns =": lambda p: p.rows.__setitem__("b", {"n": 1}),
    "columns del": lambda p: p.rows.__delitem__("b"),
    "columns in": lambda p: "b" in p.rows,
    "timer": lambda p: p.timers.register("b", 1),
}
ALL: dict[str, Callable[[Any], Any]] = {
    "iter": lambda p: list(p.values),
    "len": lambda p: len(p.lists),
    "items": lambda p: p.values.items(),
    "clear": lambda p: p.values.clear(),
    "columns rows": lambda p: p.rows.rows(["a"]),
    "columns scan": lambda p: list(p.rows.scan()),
    "due": lambda p: list(p.timers.due(1)),
    "next_at": lambda p: p.timers.next_at(),
}


@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("use", [pytest.param(use, id=name) for name, use in {**OTHER, **ALL}.items()])
@run_virtual
async def test_state_of_another_key_or_of_all_keys_is_refused(use, swallows) -> None:
    """The batch fails even if the processor swallows the error, and nothing was changed."""

    def refused(processor: Any, key: str) -> None:
        with pytest.raises(InputError, match="its own key only"):
            use(processor)
        if not swallows:
            use(processor)

    async with open_job() as backend:
        job = Job(backend, refused)
        with pytest.raises(InputError, match="its own key only"):
            await job.batch("a")
        assert job.changes() == b""


@run_virtual
async def test_state_of_its_own_key_and_operator_state_may_be_used() -> None:
    """Each kind has what it has elsewhere."""

    def use(p: Any, key: str) -> None:
        assert (p.values.get(key), p.values.pop(key, 7), key in p.values) == (None, 7, False)
        assert p.values.setdefault(key, 1) == 1
        p.values.update_many([key], [2], operator.add)
        p.lists[key].extend([1, 2])
        p.lists[key] = [*p.lists[key], 3]
        p.maps[key]["x"] = p.lists.length(key)
        p.sums.add(key, 4)
        p.means.add_many([key, key], [1, 2])
        p.rows[key] = {"n": 1}
        p.timers.register(key, 5.0)
        p.seen.append(key)
        assert list(p.seen) == []
        assert [p.values[key], list(p.lists[key]), dict(p.maps[key]), p.sums[key], p.means[key]] == [
            3, [1, 2, 3], {"x": 3}, 4, 1.5,
        ]  # fmt: skip
        assert (p.rows[key], key in p.rows, p.timers.registered(key)) == ({"n": 1}, True, (5.0,))

    async with open_job() as backend:
        await Job(backend, use, concurrency=1).batch("a", "b")
        assert list(backend.operator_state("seen", str)) == ["a", "b"]
        assert dict(backend.value_state("values", int)) == {"a": 3, "b": 3}


@pytest.mark.parametrize("is_stored", [False, True])
@run_virtual
async def test_a_call_sees_the_rows_that_it_has_set_and_deleted(*, is_stored: bool) -> None:
    """Before they are applied, and whether or not the row was there when the batch began."""

    def use(p: Any, key: str) -> None:
        assert (key in p.rows, p.rows.get(key)) == ((True, {"n": 1}) if is_stored else (False, None))
        p.rows[key] = {"n": 2}
        p.rows[key]["n"] = 7  # of a copy
        assert (key in p.rows, p.rows[key], p.rows.get(key)) == (True, {"n": 2}, {"n": 2})
        del p.rows[key]
        assert (key in p.rows, p.rows.get(key), p.rows.get(key, "none"), p.rows.pop(key, "none")) == (
            False, None, "none", "none",
        )  # fmt: skip
        for gone in (lambda: p.rows[key], lambda: p.rows.pop(key), lambda: p.rows.__delitem__(key)):
            with pytest.raises(KeyError):
                gone()
        p.rows[key] = {"n": 3}
        assert (p.rows.pop(key, "none"), key in p.rows) == ({"n": 3}, False)
        if key == "b":
            p.rows[key] = {"n": 4}

    async with open_job() as backend:
        if is_stored:
            await Job(backend, lambda p, key: p.rows.__setitem__(key, {"n": 1})).batch("a", "b")
        await Job(backend, use).batch("a", "b")
        rows = backend.columnar_state("rows", pa.schema([("n", pa.int64())]), key=pa.string())
        assert dict(rows.items()) == {"b": {"n": 4}}


@run_virtual
async def test_a_refusal_names_whose_call_it_was_and_what_it_used() -> None:
    """In this order: the call is the one to look at."""
    async with open_job() as backend:
        with pytest.raises(InputError, match=r"key='a'.*used='b'"):
            await Job(backend, lambda p, key: p.values.get("b")).batch("a")
    async with open_job() as backend:
        with pytest.raises(InputError, match=r"key='a'.*used='all keys, by len'"):
            await Job(backend, lambda p, key: len(p.values)).batch("a")


@pytest.mark.parametrize(
    ("use", "error"),
    [
        (lambda p, key: p.values.__setitem__(key, "text"), ValueEncodeError),
        (lambda p, key: p.seen.append(1), ValueEncodeError),
        (lambda p, key: p.rows.__setitem__(key, {"n": "text"}), ValueEncodeError),
        (lambda p, key: p.rows.__setitem__(key, {"m": 1}), InputError),
        (lambda p, key: p.rows.__delitem__(key), KeyError),
        (lambda p, key: p.rows[key], KeyError),
        (lambda p, key: p.values[key], KeyError),
        (lambda p, key: p.values.unknown, AttributeError),
    ],
)
@run_virtual
async def test_errors_of_the_state_are_raised_where_it_is_used(use, error) -> None:
    """Not when the batch ends, though some writes are applied only then."""

    def failing(processor: Any, key: str) -> None:
        with pytest.raises(error):
            use(processor, key)

    async with open_job() as backend:
        job = Job(backend, failing)
        await job.batch("a")
        assert job.changes() == b""


@run_virtual
async def test_elements_of_operator_state_are_copied_where_they_are_added() -> None:
    """What becomes of them afterwards does not matter, as with any state."""

    async def use(p: Any, key: str) -> None:
        p.seen.extend(added := [key])
        await anyio.lowlevel.checkpoint()
        added.append("more")

    async with open_job() as backend:
        await Job(backend, use).batch("a")
        assert list(backend.operator_state("seen", str)) == ["a"]


@run_virtual
async def test_a_task_that_outlives_its_call_is_refused_and_fails_the_batch() -> None:
    """In the batch in which it comes, or in the next one if it comes between them; views that it holds do not help."""
    left: list[asyncio.Task[Any]] = []

    async def later(p: Any, view: Any, after_s: float) -> None:
        await anyio.sleep(after_s)
        with pytest.raises(InputError, match="started and not awaited"):
            p.values["a"] = 1
        with pytest.raises(InputError, match="started and not awaited"):
            view.append(1)
        with pytest.raises(InputError, match="started and not awaited"):
            p.seen.append("a")

    async def use(p: Any, key: str) -> None:
        if key == "a":
            left.append(asyncio.create_task(later(p, p.lists["a"], 1)))
        if key == "b":
            await anyio.sleep(2)

    async with open_job() as backend:
        with pytest.raises(InputError, match="started and not awaited"):
            await (job := Job(backend, use)).batch("a", "b")
        assert job.changes() == b""
    async with open_job() as backend:
        await (job := Job(backend, use)).batch("a")
        await asyncio.wait(left)
        with pytest.raises(InputError, match="started and not awaited"):
            await job.batch("c")
        assert job.changes() == b""
        await job.batch("c")
    assert [task.exception() for task in left] == [None, None]


@run_virtual
async def test_a_generator_that_is_left_half_way_cannot_touch_state_when_it_is_closed(caplog) -> None:
    """Asyncio closes it when the call has ended."""

    async def pages(p: Any, key: str) -> Any:
        try:
            yield 1
            yield 2
        finally:
            p.values[key] = 1

    async def use(p: Any, key: str) -> None:
        async for _ in pages(p, key):
            break

    async with open_job() as backend:
        with pytest.raises(InputError, match="left half way"):
            await (job := Job(backend, use)).batch("a")
        assert "started and not awaited" in caplog.text
        assert job.changes() == b""


class Yielding(sb.spark.KeyedProcessor):
    """Yields what no output takes; notes when it was closed."""

    def __init__(self, row: Any) -> None:
        self.row = row
        self.closed: list[str] = []

    async def process(self, key, rows, context):
        try:
            yield self.row
            await anyio.sleep_forever()
        finally:
            await anyio.lowlevel.checkpoint()
            self.closed.append(key)


@run_virtual
async def test_a_process_that_yields_what_nobody_takes_is_closed_half_way() -> None:
    """Without an output its first row is an error, and its `finally` has run before the batch fails."""
    processor = Yielding({"key": "a"})
    runner = ProcessorRunner(processor, key="key", order_by=(), has_output=False)
    async with open_job() as backend:
        with pytest.raises(InputError, match="has no output"):
            await runner.run(runner.keys_of(pa.table({"key": ["a"]})), 0, backend)
    assert processor.closed == ["a"]


@run_virtual
async def test_state_in_a_thread_is_refused() -> None:
    """It would be used beside the loop, where the other calls use theirs."""

    async def use(p: Any, key: str) -> None:
        await asyncio.to_thread(p.values.get, key)

    async with open_job() as backend:
        with pytest.raises(InputError, match="used in a thread"):
            await Job(backend, use).batch("a")


@run_virtual
async def test_state_outside_of_any_call_is_refused() -> None:
    """A task that `open` has started; `open` itself may use all of it."""
    started: list[asyncio.Task[Any]] = []

    class Starting(Using):
        def open(self, context):
            super().open(context)
            assert (len(self.values), list(self.rows), list(self.seen)) == (0, [], [])
            self.values["z"] = 1
            self.rows["z"] = {"n": 1}
            self.seen.append("z")
            started.append(asyncio.create_task(self.use_all()))

        async def use_all(self):
            await anyio.sleep(1)
            return len(self.values)

    runner = ProcessorRunner(Starting(lambda p, key: anyio.sleep(2)), key="key", order_by=(), has_output=False)
    async with open_job() as backend:
        with pytest.raises(InputError, match="outside of the calls"):
            await runner.run(runner.keys_of(pa.table({"key": ["a"]})), 0, backend)
        assert isinstance(started[0].exception(), InputError)


@run_virtual
async def test_state_of_another_sink_is_refused() -> None:
    """Its calls are others."""
    mine: list[Any] = []
    async with open_job() as backend, open_job() as another:
        await Job(another, lambda p, key: mine.append(p)).batch("a")
        with pytest.raises(InputError, match="another sink"):
            await Job(backend, lambda p, key: mine[0].values.get(key)).batch("a")


@run_virtual
async def test_a_range_that_has_ended_is_not_kept() -> None:
    """Its states would stay in memory for as long as the executor lives, which opens other ranges."""
    runner = ProcessorRunner(Using(lambda p, key: None), key="key", order_by=(), has_output=False)

    async def batch(backend: Any) -> None:
        await runner.run(runner.keys_of(pa.table({"key": list[str]()}, pa.schema([("key", pa.string())]))), 0, backend)

    async with open_job() as ended:
        await batch(ended)
    parts = first, second = KeyGroupRange(0, 63), KeyGroupRange(64, 127)
    settings = sb.Settings(job="j", primary=f"memory://own-{next(jobs)}", local=())
    async with (
        sb.open_backend(settings, key_groups=first, owners=parts) as one,
        sb.open_backend(settings, key_groups=second, owners=parts) as two,
    ):
        await batch(one)
        await batch(two)
        assert list(runner._opened) == [first, second]


# ------------------------------------------------------------------------------------------------------- arguments


class Synchronous(sb.spark.KeyedProcessor):
    def process(self, key, rows, context):
        return None


class OpensAsync(Synchronous):
    async def open(self, context):
        pass


class TableAsync(sb.spark.KeyedProcessor):
    async def process_table(self, table, context):
        return table


@pytest.mark.parametrize(
    ("processor", "options", "said"),
    [
        (Using(print), {"concurrency": 0}, "at least 1"),
        (Using(print), {"concurrency": -1}, "at least 1"),
        (Using(print), {"concurrency": 2.0}, "at least 1"),
        (Using(print), {"concurrency": True}, "at least 1"),
        (Synchronous(), {"concurrency": 2}, "async def process"),
        (Synchronous(), {"concurrency": 0}, "at least 1"),
        (OpensAsync(), {}, "open cannot be async"),
        (TableAsync(), {}, "process_table cannot be async"),
        (print, {"concurrency": 2, "key": ()}, "need a KeyedProcessor"),
        (Synchronous, {}, r"an instance of it: Synchronous\("),
        (Synchronous, {"key": ()}, r"an instance of it: Synchronous\("),
        (Synchronous(), {"key": None}, "key must be"),
        (Synchronous(), {"key": 5}, "key must be"),
        (Synchronous(), {"key": ["key", None]}, "key must be"),
        (Synchronous(), {"key": b"key"}, "key must be"),
        (Synchronous(), {"order_by": None}, "order_by must be"),
        (Synchronous(), {"execution": "executors", "parallelism": "4"}, "a whole number between"),
        (Synchronous(), {"execution": "executors", "parallelism": 2.0}, "a whole number between"),
        (Synchronous(), {"execution": "executors", "parallelism": True}, "a whole number between"),
        (Synchronous(), {"settings": {"job": "j", "primary": "memory://x"}}, "Settings.from_mapping"),
    ],
)
def test_arguments_that_cannot_be_are_refused_when_the_sink_is_made(processor, options, said) -> None:
    """Not when the first batch has come."""
    settings = sb.Settings(job="j", primary="memory://x")
    with pytest.raises(SettingsError, match=said):
        sb.spark.StatefulSink(processor, **{"settings": settings, "key": "key", **options})


def test_a_synchronous_process_that_returns_a_coroutine_is_told_how_to_be_awaited() -> None:
    """Nothing of it has run."""

    async def wanted() -> None: ...

    class Wrapped(sb.spark.KeyedProcessor):
        def process(self, key, rows, context):
            self.returned.append(wanted())
            return self.returned[-1]

        def open(self, context):
            self.returned = returned

    returned: list[Any] = []
    runner = ProcessorRunner(Wrapped(), key="key", order_by=(), has_output=False)

    @run_virtual
    async def batch() -> None:
        async with open_job() as backend:
            with pytest.raises(InputError, match="async def"):
                runner(pa.table({"key": ["a"]}), 0, backend)

    batch()
    returned[0].close()
