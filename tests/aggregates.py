"""What tests add up with: aggregates as a user writes them."""


class Mean:
    """Of ints, a float."""

    def create(self) -> tuple[int, int]:
        return 0, 0

    def add(self, accumulator: tuple[int, int], value: int) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, accumulator: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + other[0], accumulator[1] + other[1]


class Spread:
    """The largest less the smallest."""

    def create(self) -> tuple[int, int]:
        return 1000, -1000

    def add(self, accumulator: tuple[int, int], value: int) -> tuple[int, int]:
        return min(accumulator[0], value), max(accumulator[1], value)

    def result(self, accumulator: tuple[int, int]) -> int:
        return accumulator[1] - accumulator[0]

    def merge(self, accumulator: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        return min(accumulator[0], other[0]), max(accumulator[1], other[1])
