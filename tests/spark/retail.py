"""A shop's invoice lines as a stream of days, the state of customers and of products, and the same in one pass.

The lines are made up from a seed, or come from the data set "Online Retail" (UCI, CC BY 4.0) where the environment says
where that is: a folder of one gzipped CSV per day. Made-up lines have the same warts: customers that are not known,
returns before purchases. The workers import this module, so it has nothing that they lack.
"""

import csv
import gzip
import os
import random
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from statebackend.spark import KeyedProcessor

DATA_SET = "STATEBACKEND_ONLINE_RETAIL"
"""The environment variable that names the folder of the data set."""

LINES = pa.schema(
    {
        "customer": pa.string(),
        "product": pa.string(),
        "invoice": pa.string(),
        "quantity": pa.int64(),
        "price": pa.int64(),
        "line": pa.int64(),
    }
)
SPARK_LINES = "customer string, product string, invoice string, quantity bigint, price bigint, line bigint"


class Line(msgspec.Struct):
    """One line of an invoice. `price`: in thousandths of a pound; `line`: its number within the stream."""

    customer: str | None
    product: str
    invoice: str
    quantity: int
    price: int
    line: int


Day = Sequence[Line]


def made_up(days: int, *, lines: int, seed: int) -> Sequence[Day]:
    """That many days of that many lines."""
    rng = random.Random(seed)
    made = []
    for day in range(days):
        of_day = []
        for number in range(day * lines, (day + 1) * lines):
            customer = rng.choice([None, *(f"c{rng.randrange(lines)}" for _ in range(4))])
            quantity = rng.choice([-3, -1, 1, 2, 6, 12])
            price = rng.randrange(100, 9000)
            of_day.append(Line(customer, f"p{rng.randrange(lines)}", f"{day}-{number // 4}", quantity, price, number))
        made.append(of_day)
    return made


def of_data_set(days: int) -> Sequence[Day]:
    """The first days of the data set. Raises `KeyError` where the environment does not say where it is."""
    files = sorted(Path(os.environ[DATA_SET]).glob("*.csv.gz"))[:days]
    numbers = count()
    return [list(_lines_of(path, numbers)) for path in files]


def _lines_of(path: Path, numbers: Iterator[int]) -> Iterator[Line]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            price = int(Decimal(row["UnitPrice"]) * 1000)
            quantity, number = int(row["Quantity"]), next(numbers)
            yield Line(row["CustomerID"] or None, row["StockCode"], row["InvoiceNo"], quantity, price, number)


def write(days: Sequence[Day], folder: Path) -> None:
    """One file a day, in the order in which a file stream takes them. Within a file the lines are in disorder."""
    folder.mkdir(parents=True)
    for number, day in enumerate(days):
        shuffled = random.Random(number).sample(day, len(day))
        path = folder / f"{number:04d}.parquet"
        pq.write_table(pa.Table.from_pylist([msgspec.structs.asdict(line) for line in shuffled], LINES), path)
        os.utime(path, (1_700_000_000 + number * 60,) * 2)


class Customer(msgspec.Struct, frozen=True):
    """The state of a customer. `baskets`: changes from one invoice to another, so it depends on the order."""

    spend: int = 0
    returned: int = 0
    baskets: int = 0
    invoice: str = ""


def after(customer: Customer, invoice: str, quantity: int, price: int) -> Customer:
    """The customer after one more line."""
    return Customer(
        spend=customer.spend + quantity * price,
        returned=customer.returned + max(-quantity, 0),
        baskets=customer.baskets + (customer.invoice != invoice),
        invoice=invoice,
    )


class Customers(KeyedProcessor):
    """Running spend, returns and baskets, line by line."""

    key = "customer"
    type_ = Customer
    output_schema = pa.schema({"key": pa.string(), "spend": pa.int64(), "returned": pa.int64(), "baskets": pa.int64()})

    def open(self, context):
        self.totals = context.value_state("totals", Customer)

    def process(self, key, rows, context):
        customer = self.totals.get(key, Customer())
        for row in rows:
            customer = after(customer, row["invoice"], row["quantity"], row["price"])
        self.totals[key] = customer
        yield {"key": key, "spend": customer.spend, "returned": customer.returned, "baskets": customer.baskets}


class Failing(Customers):
    """Fails in some batches, the first time that it has come to the end of a key there.

    Each attempt at a range writes down what time it is there, by the job's clock.
    """

    def __init__(self, memory: str, batches: Sequence[int]) -> None:
        self._memory = memory
        self._batches = batches

    def open_batch(self, context):
        attempt = TaskContext.get().taskAttemptId()
        Path(self._memory, f"clock-{context.batch_id}-{attempt}").write_text(str(context.clock_s))

    def process(self, key, rows, context):
        yield from super().process(key, rows, context)
        failed = Path(self._memory, f"failed-{context.batch_id}")
        if context.batch_id in self._batches and not failed.exists():
            failed.touch()
            raise ValueError("as it was told to")


class Slow(Customers):
    """In some batches, the first attempt that comes to a key waits until Spark makes another one at the same task."""

    def __init__(self, memory: str, batches: Sequence[int]) -> None:
        self._memory = memory
        self._batches = batches

    def process(self, key, rows, context):
        if context.batch_id in self._batches:
            self._wait(context.batch_id)
        yield from super().process(key, rows, context)

    def _wait(self, batch_id: int) -> None:
        task = TaskContext.get()
        partition, attempt = str(task.partitionId()), str(task.taskAttemptId())
        slow, twin = Path(self._memory, f"slow-{batch_id}"), Path(self._memory, f"twin-{batch_id}")
        own = Path(self._memory, f"attempt-{batch_id}-{attempt}")
        own.write_text(f"{partition} {attempt}")
        try:
            os.link(own, slow)  # with its content, at once
        except FileExistsError:
            if slow.read_text().split()[0] == partition and slow.read_text().split()[1] != attempt:
                twin.touch()
            return
        while not twin.exists():
            time.sleep(0.05)


class Products(KeyedProcessor):
    """Stock movement, a table at a time."""

    key = "product"
    type_ = tuple[int, int]
    output_schema = pa.schema({"key": pa.string(), "moved": pa.int64(), "lines": pa.int64()})

    def open(self, context):
        self.totals = context.value_state("totals", tuple[int, int])

    def process_table(self, table, context):
        found = table.group_by("product").aggregate([("quantity", "sum"), ("quantity", "count")])
        keys = found["product"].to_pylist()
        moved, lines = found["quantity_sum"].to_pylist(), found["quantity_count"].to_pylist()
        totals = [
            (before + more, seen + new)
            for (before, seen), more, new in zip(self.totals.get_many(keys, (0, 0)), moved, lines, strict=True)
        ]
        self.totals.put_many(keys, totals)
        return pa.table([keys, [each[0] for each in totals], [each[1] for each in totals]], schema=self.output_schema)


PROCESSORS: dict[str, type[Customers] | type[Products]] = {"customers": Customers, "products": Products}

Rows = dict[str, dict[str, Any]]


def in_one_pass(days: Sequence[Day], which: str) -> tuple[dict[str, Any], list[Rows]]:
    """The state after all days, and the rows that come out on each, by key."""
    state: dict[str, Any] = {}
    put_out: list[Rows] = []
    for day in days:
        rows: Rows = {}
        for line in day:
            if which == "products":
                moved, lines = state.get(line.product, (0, 0))
                state[line.product] = (moved + line.quantity, lines + 1)
                rows[line.product] = {"key": line.product, "moved": moved + line.quantity, "lines": lines + 1}
            elif line.customer is not None:
                known = after(state.get(line.customer, Customer()), line.invoice, line.quantity, line.price)
                state[line.customer] = known
                told = {"spend": known.spend, "returned": known.returned, "baskets": known.baskets}
                rows[line.customer] = {"key": line.customer, **told}
        put_out.append(rows)
    return state, put_out
