"""The kinds of metrics, and the class that stores their values.

    class Weather(Numbers):
        storms = Counter("Storms so far.", unit="storms")

    Weather.storms        the definition: name, kind, unit, meaning
    weather.storms        the value, readable from any thread
    weather.record(Weather.storms, 1)

Each metric is defined once. Its values here, its Prometheus series and its row in the docs are derived from that.
"""

import collections
import functools
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeVar, cast, overload

import msgspec

VALUES_MAX: Final = 1000
"""Most recent values that a histogram stores."""

LABELS_MAX: Final = 20
"""Labels that a counter counts separately. Further labels are counted as `OTHER`."""

OTHER: Final = "other"


class Distribution(msgspec.Struct, frozen=True):
    """Recorded values: their count and sum since the start, and the last 1000 of them, oldest first."""

    count: int = 0
    total: float = 0
    last: tuple[float, ...] = ()

    @property
    def min(self) -> float:
        """The smallest of `last`, NaN if there are none."""
        return min(self.last, default=math.nan)

    @property
    def max(self) -> float:
        """The largest of `last`, NaN if there are none."""
        return max(self.last, default=math.nan)

    @property
    def mean(self) -> float:
        """The mean of `last`, NaN if there are none."""
        return sum(self.last) / len(self.last) if self.last else math.nan

    def quantile(self, fraction: float) -> float:
        """The smallest of `last` that at least this fraction of them do not exceed, NaN if there are none."""
        if not self.last:
            return math.nan
        return sorted(self.last)[max(0, math.ceil(fraction * len(self.last)) - 1)]


Value = int | float | Mapping[str, int] | Distribution
"""The value of a counter or gauge, a total or level, a counter by label, and a histogram."""

V_co = TypeVar("V_co", bound=Value, covariant=True)


class Metric(Generic[V_co]):
    """The definition of one metric: an attribute of a `Numbers` class, which also gives it its name."""

    kind: ClassVar[Literal["counter", "gauge", "histogram"]]

    def __init__(self, meaning: str, *, unit: str, label: str = "") -> None:
        self.name = ""
        self.unit: Final = unit
        self.meaning: Final = meaning
        self.label: Final = label
        """The dimension of the metric, empty if it has none."""

    @property
    def series(self) -> str:
        """The Prometheus name: with the unit, and with `_total` if the metric only grows."""
        unit = f"_{self.unit}" if self.unit in ("bytes", "seconds") else ""
        name = f"statebackend_{self.name.removesuffix(unit)}{unit}"
        return f"{name}_total" if self.kind == "counter" else name

    def read(self, numbers: "Numbers") -> V_co:
        """The current value."""
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
    """An integer that only grows: recording adds."""

    kind = "counter"

    def read(self, numbers: "Numbers") -> int:
        return numbers.counted(self)[""]


class CounterByLabel(Metric[Mapping[str, int]]):
    """One counter per label, such as a reason or a kind; 0 for a label that has not occurred.

    At most `LABELS_MAX` labels are counted separately, the rest as `OTHER`.
    """

    kind = "counter"

    def read(self, numbers: "Numbers") -> Mapping[str, int]:
        return numbers.counted(self)


class Gauge(Metric[int]):
    """An integer that goes up and down: recording sets it. Starts at 0."""

    kind = "gauge"

    def read(self, numbers: "Numbers") -> int:
        return numbers.counted(self)[""]


class Total(Metric[float]):
    """A fractional counter: recording adds."""

    kind = "counter"

    def read(self, numbers: "Numbers") -> float:
        return numbers.amount(self)


class Level(Metric[float]):
    """A fractional gauge: recording sets it. Starts at 0."""

    kind = "gauge"

    def read(self, numbers: "Numbers") -> float:
        return numbers.amount(self)


class Histogram(Metric[Distribution]):
    """A distribution: recording appends a value. The last `VALUES_MAX` values are stored."""

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
        self.last: collections.deque[float] = collections.deque(maxlen=VALUES_MAX)

    def append(self, value: float) -> None:
        self.count += 1
        self.total += value
        self.last.append(value)


class Numbers:
    """Stores the values of the metrics that its class defines. Any thread may record and read; no value is torn.

    Override `record` to also send the values elsewhere. A pickled copy starts at zero.
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
        """The metrics of this class, in the order of their definition."""
        attributes = (each for owner in reversed(cls.__mro__) for each in vars(owner).values())
        return tuple(cast("AnyMetric", each) for each in attributes if isinstance(each, Metric))

    def record(self, metric: AnyMetric, value: float, label: str = "") -> None:
        """Add to a counter or total, set a gauge or level, append to a histogram.

        `label` must come from `bounded`.
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
        """Return `label`, or `OTHER` if the metric has `LABELS_MAX` labels already."""
        counts = self._counts[metric]
        return label if label in counts or len(counts) < LABELS_MAX - 1 else OTHER

    def snapshot(self) -> Mapping[str, Value]:
        """Every value by name. Each is consistent in itself; an event may fall between two of them."""
        return {each.name: each.read(self) for each in self.definitions()}

    def counted(self, metric: AnyMetric) -> Mapping[str, int]:
        """A copy of a metric's counts by label, 0 for other labels; a metric without labels uses the label ''."""
        with self._lock:
            return self._counts[metric].copy()

    def amount(self, metric: Total | Level) -> float:
        """The value of a total or level."""
        with self._lock:
            return self._amounts[metric]

    def distribution(self, metric: Histogram) -> Distribution:
        """The distribution of a histogram."""
        with self._lock:
            recorded = self._values[metric]
            return Distribution(recorded.count, recorded.total, tuple(recorded.last))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), ()
