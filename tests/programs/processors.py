"""What the programs run: processors and functions that do to the states what the rows say, and put out what they see.

The same `Do`s are done to plain dictionaries by `dictionaries.py`. This module is imported by Spark's workers, too.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio.lowlevel
import msgspec
import pyarrow as pa

import statebackend as sb
from tests.programs.operations import act, declare
from tests.programs.program import OPERATOR, Declared, Do, Job
from tests.programs.values import KEY_COLUMNS, text_of

LATER_S = 10.0
"""How much later a timer is registered again."""


def look(state: Any, declared: Declared, key: sb.Key) -> Any:
    """What the processor sees under the key, as values; what is not there is `None`, or empty."""
    match declared.kind:
        case "list":
            return list(state[key])
        case "map":
            return sorted([text_of(name), text_of(value)] for name, value in state[key].items())
        case "columns":
            return dict(state[key]) if key in state else None
        case "timers":
            return list(state.registered(key))
        case _:
            return state.get(key)


class Work:
    """The states of a copy, and what is done to them."""

    def __init__(self, job: Job, keys: str, declaring: Any) -> None:
        self.job = job
        self.states = {each.name: declare(declaring, each, job, keys) for each in job.states}
        self.declared = {each.name: each for each in job.states}

    def row(self, key: sb.Key, row: Mapping[str, Any], context: Any) -> None:
        if (raises := row["raises"]) is not None:
            FAILING.get(raises, fail)()
        now_s = context.clock_s if context.clock_s is not None else 0.0
        for do in msgspec.json.decode(row["does"], type=list[Do]):
            act(self.states[do.state], self.declared[do.state], key, do, now_s)

    def seen(self, key: sb.Key) -> str:
        """All that the states have under the key."""
        keyed = [each for each in self.job.states if each.kind not in OPERATOR]
        copies = {each.name: list(self.states[each.name]) for each in self.job.states if each.kind == "broadcast"}
        return text_of({each.name: look(self.states[each.name], each, key) for each in keyed} | copies)

    def end(self, batch_id: int) -> None:
        """Operator state, written once in a batch by each owner."""
        for name, each in self.declared.items():
            if each.kind == "split":
                self.states[name].append(batch_id)
            elif each.kind == "broadcast" and not len(self.states[name]):  # who comes later has a copy of the others'
                self.states[name].replace([batch_id])
            elif each.kind == "union":  # each owner was given all that the owners before it had
                self.states[name].replace(sorted({*self.states[name], batch_id}))

    def timer(self, key: sb.Key, at: float, name: str, context: Any) -> str:
        """Some timers register their own time again, some delete what an earlier one registered, some go on."""
        timers = self.states[name]
        match int(at) % 4:
            case 0 if context.clock_before_s is None or at >= context.clock_before_s:
                timers.register(key, at)
            case 1:
                timers.delete(key, at - 1)
            case 2:
                timers.register(key, max(at + LATER_S, context.clock_s))
        return f"timer {name} {at} {list(timers.registered(key))}"


FAILING: dict[str, Callable[[], None]] = {}
"""What a row calls that says so, where it is registered in this process; elsewhere such a row raises."""


class OnPurposeError(Exception):
    """What fails on purpose."""


def fail() -> None:
    raise OnPurposeError("on purpose")


def whens(row: Mapping[str, Any]) -> str:
    """The time of a row as a user writes it: depends on the zone in which the row arrives."""
    return str(row["at"])


class Processing(sb.spark.KeyedProcessor):
    """What all processors of programs share."""

    def __init__(self, job: Job, keys: str) -> None:
        self.job, self.keys = job, keys
        columns = {**KEY_COLUMNS[keys], "seen": pa.string(), "whens": pa.string()}
        self.output_schema = pa.schema(list(columns.items()))  # type: ignore[misc]  # each job has its own keys

    def open(self, context: Any) -> None:
        self.work = Work(self.job, self.keys, context)

    def close_batch(self, context: Any) -> None:
        self.work.end(context.batch_id)

    def rows(self, key: sb.Key, rows: Any, context: Any) -> Iterator[dict[str, Any]]:
        for row in rows:
            self.work.row(key, row, context)
        seen = self.work.seen(key)
        if self.job.output != "none":
            yield self.output(key, seen, [whens(row) for row in rows])

    def output(self, key: Any, seen: str, times: list[str]) -> dict[str, Any]:
        parts = key if isinstance(key, tuple) else (key,)
        return {**dict(zip(KEY_COLUMNS[self.keys], parts, strict=True)), "seen": seen, "whens": ", ".join(times)}


class PuttingOutLate(Processing):
    def process_late(self, key: Any, rows: Any, context: Any) -> Any:
        return [self.output(key, f"late {len(rows)}", [])]


class WithTimers(Processing):
    def on_timer(self, key: Any, at: float, context: Any) -> Any:
        seen = self.work.timer(key, at, context.timer_name, context)
        if self.job.output != "none":
            yield self.output(key, seen, [])


class ByKey(Processing):
    def process(self, key: Any, rows: Any, context: Any) -> Any:
        return list(self.rows(key, rows, context))


class ByKeyAwaited(Processing):
    async def process(self, key: Any, rows: Any, context: Any) -> Any:
        await anyio.lowlevel.checkpoint()
        found = list(self.rows(key, rows, context))
        await anyio.lowlevel.checkpoint()
        return found


class ByTable(Processing):
    def process_table(self, table: Any, context: Any) -> Any:
        by_key: dict[Any, list[Any]] = {}
        for row in table.to_pylist():
            by_key.setdefault(key_in(row, self.keys), []).append(row)
        found = [each for key, rows in by_key.items() for each in self.rows(key, rows, context)]
        return None if self.job.output == "none" else pa.Table.from_pylist(found, schema=self.output_schema)


WORKS: dict[str, type[Processing]] = {"process": ByKey, "async process": ByKeyAwaited, "table": ByTable}
HOOKS = {"Timers": WithTimers, "Late": PuttingOutLate}


def processor_class(work: str, hooks: tuple[str, ...]) -> type[Processing]:
    """The class with these hooks and no others: a sink refuses those that it would not call."""
    return globals()[WORKS[work].__name__ + "".join(hooks)]  # type: ignore[no-any-return]


def _make_classes() -> None:
    """One for each combination, in this module, where Spark's workers find them."""
    for class_ in WORKS.values():
        for hooks in (("Timers",), ("Late",), ("Timers", "Late")):
            name = class_.__name__ + "".join(hooks)
            bases = (*(HOOKS[hook] for hook in hooks), class_)
            globals()[name] = type(name, bases, {"__module__": __name__, "__qualname__": name})


_make_classes()


def key_in(row: Mapping[str, Any], keys: str) -> Any:
    parts = tuple(row[name] for name in KEY_COLUMNS[keys])
    return parts if keys == "tuple" else parts[0]


class Function:
    """A plain function of a batch, which declares its states each time."""

    def __init__(self, job: Job, keys: str) -> None:
        self.job, self.keys = job, keys

    def __call__(self, df: Any, batch_id: int, backend: Any) -> Any:
        return self.on_rows(df.toArrow(), batch_id, backend)

    def on_rows(self, table: Any, batch_id: int, backend: Any) -> Any:
        processing = Processing(self.job, self.keys)
        processing.work = Work(self.job, self.keys, backend)
        by_key: dict[Any, list[Any]] = {}
        for row in table.to_pylist():
            by_key.setdefault(key_in(row, self.keys), []).append(row)
        found = [each for key, rows in by_key.items() for each in processing.rows(key, rows, backend)]
        for at, key, name in backend.due_timers() if self.job.clock != "none" else ():
            seen = processing.work.timer(key, at, name, backend)
            found += [processing.output(key, seen, [])]
        if by_key:
            processing.work.end(batch_id)
        return None if self.job.output == "none" else pa.Table.from_pylist(found, schema=processing.output_schema)


class AsyncFunction(Function):
    async def __call__(self, df: Any, batch_id: int, backend: Any) -> Any:
        return self.on_rows(await sb.spark.to_arrow(df), batch_id, backend)


def work_of(job: Job, keys: str) -> Any:
    """The function or the processor of a job."""
    if job.work == "function":
        return Function(job, keys)
    if job.work == "async function":
        return AsyncFunction(job, keys)
    has_timers = any(each.kind == "timers" for each in job.states)
    hooks = (*(("Timers",) if has_timers else ()), *(("Late",) if job.late == "output" else ()))
    return processor_class(job.work, hooks)(job, keys)
