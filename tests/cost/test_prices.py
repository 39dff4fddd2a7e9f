"""What requests cost, and what that makes in a month, against numbers worked out by hand."""

import pytest

from statebackend._checkpoint.put_budget import MONTH_S, RATE_STEP_S, RATE_WINDOW_S, SpendingRate
from statebackend.abc import ObjectStore
from statebackend.settings import Prices

PRICES = Prices()


def rate_after(spent: list[tuple[float, float]]) -> float:
    """The rate after calls at these times with these sums."""
    rate, usd_month = SpendingRate(0.0), 0.0
    for now_s, spent_usd in spent:
        usd_month = rate.usd_month(spent_usd, now_s)
    return usd_month


@pytest.mark.parametrize(
    ("requests", "usd"),
    [
        ({"put": 1_000_000}, 5.00),
        ({"put_if_absent": 1_000_000}, 5.00),
        ({"list": 1_000_000}, 5.00),
        ({"get": 10_000}, 0.004),
        ({"get_range": 10_000}, 0.004),
        ({"head": 10_000}, 0.004),
        ({"delete": 1_000_000}, 0.0),
        ({"put": 4}, 2e-5),
        ({"put": 1, "put_if_absent": 1, "get": 5, "delete": 7}, 12e-6),
        ({}, 0.0),
        ({"teleport": 5}, 0.0),
    ],
)
def test_requests_cost_what_s3_standard_takes(requests: dict[str, int], usd: float) -> None:
    """5 USD for a million PUTs, 0.4 USD for a million GETs, nothing for a deletion."""
    assert PRICES.usd(requests) == pytest.approx(usd)


def test_every_method_of_a_store_has_a_price() -> None:
    """With every price at 1 USD a request, one call of each method is as many USD."""
    prices = Prices(put_usd_per_1000=1e3, get_usd_per_1000=1e3, list_usd_per_1000=1e3, delete_usd_per_1000=1e3)
    methods = [name for name in vars(ObjectStore) if not name.startswith("_") and name != "capabilities"]
    assert prices.usd(dict.fromkeys(methods, 1)) == len(methods)


@pytest.mark.parametrize(
    ("setting", "kinds"),
    [
        ("put_usd_per_1000", {"put", "put_if_absent"}),
        ("get_usd_per_1000", {"get", "get_range", "head"}),
        ("list_usd_per_1000", {"list"}),
        ("delete_usd_per_1000", {"delete", "delete_many"}),
    ],
)
def test_prices_are_settings(setting: str, kinds: set[str]) -> None:
    """Another provider, another price; and of the kinds it is said of only."""
    dear = Prices(**{setting: 7000.0})
    methods = ["put", "put_if_absent", "get", "get_range", "head", "list", "delete", "delete_many"]
    assert {kind for kind in methods if dear.usd({kind: 1}) == 7} == kinds


def test_only_puts_count_as_puts() -> None:
    """What the pace can change: reads and listings are not made by sending changes."""
    assert PRICES.put_usd({"put": 1, "put_if_absent": 1, "get": 100, "list": 100, "delete": 100}) == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("every_s", "usd_month"),
    [(0.1, 129.60), (0.25, 51.84), (1.0, 12.96), (5.0, 2.592), (10.0, 1.296)],
)
def test_a_put_at_every_tick_of_a_timer(every_s: float, usd_month: float) -> None:
    """12.96 USD a month for one PUT a second. SlateDB prices its timer of 100 ms at 130 USD a month."""
    ticks = int(RATE_WINDOW_S * 2 / every_s)
    spent = [(number * every_s, PRICES.usd({"put": number})) for number in range(1, ticks + 1)]
    assert rate_after(spent) == pytest.approx(usd_month)


def test_one_request_is_no_rate() -> None:
    """A tenth of a second after the beginning, one PUT would make 129.60 USD a month: it counts as one a minute."""
    assert rate_after([(0.1, 5e-6)]) == pytest.approx(5e-6 / RATE_STEP_S * MONTH_S)
    assert rate_after([(0.0, 5e-6)]) == pytest.approx(5e-6 / RATE_STEP_S * MONTH_S)


def test_the_rate_forgets_what_is_long_past() -> None:
    """A second of 1,000 PUTs, and then one each minute: ten minutes later only those count."""
    spent = [(1.0, 5e-3)] + [(60.0 * minute, 5e-3 + 5e-6 * minute) for minute in range(1, 30)]
    assert rate_after(spent) == pytest.approx(5e-6 / 60 * MONTH_S)


def test_rare_calls_are_rated_over_the_time_between_them() -> None:
    """Two PUTs every two hours, and nobody asks meanwhile."""
    spent = [(7200.0 * number, 1e-5 * number) for number in range(1, 5)]
    assert rate_after(spent) == pytest.approx(1e-5 / 7200 * MONTH_S)
