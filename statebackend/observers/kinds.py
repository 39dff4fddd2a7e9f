"""What a metric is, and where its number is kept.

    class Weather(Numbers):
        storms = Counter("Storms so far.", unit="storms")

    Weather.storms        the definition: name, kind, unit, meaning
    weather.storms        the number, read from any thread
    weather.record(Weather.storms, 1)

A definition stands in one place and says everything about its metric. What is made from it: the numbers here,
the Prometheus series, and the page in the docs.
"""

import collections
import functools
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeVar, cast, overload

import msgspec

KEPT_MAX: Final = 1000
"""Values that a histogram keeps."""

LABELS_MAX: Final = 20
"""Labels that a counter keeps apart. What comes under another one is counted as `OTHER`."""

OTHER: Final = "other"


class Distribution(msgspec.Struct, frozen=True):
    """Values that were recorded: how many and their sum since the start, and the last 1000 of them, oldest first."""

    count: int = 0
    total: float = 0
    last: tuple[float, ...] = ()

    @property
    def min(self) -> float:
        """The smallest of `last`, not a number if there is none."""
        return min(self.last, default=math.nan)

    @property
    def max(self) -> float:
        """The largest of `last`, not a number if there is none."""
        return max(self.last, default=math.nan)

    @property
    def mean(self) -> float:
        """The mean of `last`, not a number if there is none."""
        return sum(self.last) / len(self.last) if self.last else math.nan

    def quantile(self, fraction: float) -> float:
        """The smallest of `last` that at least this fraction of them do not exceed; not a number if there is none."""
        if not self.last:
            return math.nan
        return sorted(self.last)[max(0, math.ceil(fraction * len(self.last)) - 1)]


Value = int | float | Mapping[str, int] | Distribution
"""What a counter or gauge, a total or level, a counter by label, and a histogram read as."""

V_co = TypeVar("V_co", bound=Value, covariant=True)


class Metric(Generic[V_co]):
    """The definition of one number, as an attribute of a `Numbers` class, which names it."""

    kind: ClassVar[Literal["counter", "gauge", "histogram"]]

    def __init__(self, meaning: str, *, unit: str, label: str = "") -> None:
        self.name = ""
        self.unit: Final = unit
        self.meaning: Final = meaning
        self.label: Final = label
        """What the number is told apart by, if it is."""

    @property
    def series(self) -> str:
        """Its name in Prometheus: with the unit, and `_total` for what only grows."""
        unit = f"_{self.unit}" if self.unit in ("bytes", "seconds") else ""
        name = f"statebackend_{self.name.removesuffix(unit)}{unit}"
        return f"{name}_total" if self.kind == "counter" else name

    def read(self, numbers: "Numbers") -> V_co:
        """The number as it is now."""
        raise NotImplementedError

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, numbers: None, owner: type) -> Self: ...
    @overload
    def __get__(self, numbers: "Numbers", owner: type) -> V_co: ...
    def __get__(self, numbers: "Numbers | None", owner: type) -> Self | V_co:
        return self if numbers is None else self.read(numbers)


class Counter(Metric[int]):
    """Only grows: recording adds."""

    kind = "counter"

    def read(self, numbers: "Numbers") -> int:
        return numbers.counted(self)[""]


class CounterByLabel(Metric[Mapping[str, int]]):
    """A counter for each of some reasons or kinds, 0 for one that has not occurred.

    At most `LABELS_MAX` are told apart; the rest is counted as `OTHER`.
    """

    kind = "counter"

    def read(self, numbers: "Numbers") -> Mapping[str, int]:
        return numbers.counted(self)


class Gauge(Metric[int]):
    """Goes up and down: recording sets. 0 at first."""

    kind = "gauge"

    def read(self, numbers: "Numbers") -> int:
        return numbers.counted(self)[""]


class Total(Metric[float]):
    """A counter of what does not come in whole numbers: recording adds."""

    kind = "counter"

    def read(self, numbers: "Numbers") -> float:
        return numbers.amount(self)


class Level(Metric[float]):
    """A gauge of what does not come in whole numbers: recording sets. 0 at first."""

    kind = "gauge"

    def read(self, numbers: "Numbers") -> float:
        return numbers.amount(self)


class Histogram(Metric[Distribution]):
    """Values one by one: recording appends. The last `KEPT_MAX` are kept."""

    kind = "histogram"

    def read(self, numbers: "Numbers") -> Distribution:
        return numbers.distribution(self)


AnyMetric = Metric[Value]


class _Recorded:
    """The values of one histogram."""

    __slots__ = ("count", "last", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.last: collections.deque[float] = collections.deque(maxlen=KEPT_MAX)

    def append(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.last.append(value)


class Numbers:
    """Keeps the metrics that its class defines. Recorded and read from any thread, each number whole.

    Override `record` to send them elsewhere too. Pickles without its numbers: a copy starts at zero.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[AnyMetric, collections.Counter[str]] = {
            each: collections.Counter()
            for each in self.definitions()
            if not isinstance(each, Histogram | Total | Level)
        }
        self._amounts: dict[AnyMetric, float] = {
            each: 0.0 for each in self.definitions() if isinstance(each, Total | Level)
        }
        self._values = {each: _Recorded() for each in self.definitions() if isinstance(each, Histogram)}

    @classmethod
    @functools.cache
    def definitions(cls) -> Sequence[AnyMetric]:
        """The metrics of this class, in the order in which they stand there."""
        attributes = (each for owner in reversed(cls.__mro__) for each in vars(owner).values())
        return tuple(cast("AnyMetric", each) for each in attributes if isinstance(each, Metric))

    def record(self, metric: AnyMetric, value: float, label: str = "") -> None:
        """Add to a counter or total, set a gauge or level, append to a histogram.

        `label` is one that `bounded` has returned.
        """
        with self._lock:
            if isinstance(metric, Histogram):
                self._values[metric].append(value)
            elif isinstance(metric, Total):
                self._amounts[metric] += value
            elif isinstance(metric, Level):
                self._amounts[metric] = value
            else:
                counts = self._counts[metric]
                counts[label] = int(value) if isinstance(metric, Gauge) else counts[label] + int(value)

    def bounded(self, metric: CounterByLabel, label: str) -> str:
        """`label`, or `OTHER` where the metric tells enough labels apart already."""
        counts = self._counts[metric]
        return label if label in counts or len(counts) < LABELS_MAX - 1 else OTHER

    def snapshot(self) -> Mapping[str, Value]:
        """Every number by name. Each is whole; between two of them something may happen."""
        return {each.name: each.read(self) for each in self.definitions()}

    def counted(self, metric: AnyMetric) -> Mapping[str, int]:
        """A copy of the counts of a metric, by label, 0 for others; one without labels has the label ''."""
        with self._lock:
            return self._counts[metric].copy()

    def amount(self, metric: Total | Level) -> float:
        """The number of a total or level."""
        with self._lock:
            return self._amounts[metric]

    def distribution(self, metric: Histogram) -> Distribution:
        """The values of a histogram."""
        with self._lock:
            recorded = self._values[metric]
            return Distribution(recorded.count, recorded.total, tuple(recorded.last))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()
