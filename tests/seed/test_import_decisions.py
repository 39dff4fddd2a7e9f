"""What of Spark's checkpoint can be taken over is decided from its logs and from what it says of its operators."""

import json
from typing import Any

import pytest

from statebackend.errors import InputError
from statebackend.spark.importing.query_log import QueryLog, query_log
from statebackend.spark.importing.stored_variables import variables_of

METADATA = '{"id":"a1c4"}'
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
OURS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def offsets(version: str = "v1", **conf: str) -> str:
    """A file of `offsets`."""
    head = {"batchWatermarkMs": 0, "batchTimestampMs": 5000, "conf": {PROVIDER: OURS, "other": "x", **conf}}
    return f'{version}\n{json.dumps(head)}\n{{"logOffset":0}}'


COMMIT = 'v1\n{"nextBatchWatermarkMs":4000}'


def test_a_query_between_two_batches_is_read() -> None:
    """With its clocks, and the settings of its state; version 2 of a commit says how the state is named."""
    log = query_log(METADATA, {"8": offsets(), "9": offsets()}, {"9": COMMIT, "8": COMMIT})
    assert log == QueryLog("a1c4", 9, 5000, 4000, {PROVIDER: OURS})
    assert (log.time_ms("event"), log.time_ms("processing")) == (4000, 5000)
    log = query_log(METADATA, {"10": offsets(), "9": offsets()}, {"10": 'v2\n{"stateUniqueIds":{}}'})
    assert (log.batch_id, log.watermark_ms) == (10, 0)
    assert log.settings["spark.sql.streaming.stateStore.checkpointFormatVersion"] == "2"


@pytest.mark.parametrize(
    ("metadata", "begun", "done", "said"),
    [
        (METADATA, {"3": offsets()}, {"2": COMMIT}, "not committed"),
        (METADATA, {"3": offsets()}, {}, "no committed batch"),
        (METADATA, {}, {}, "no committed batch"),
        (METADATA, {"3": offsets("v9")}, {"3": COMMIT}, "version that is not known"),
        (METADATA, {"3": offsets()}, {"3": "v3\n{}"}, "version that is not known"),
        (METADATA, {"3": ""}, {"3": COMMIT}, "version that is not known"),
        (METADATA, {"3": "v1\n{"}, {"3": COMMIT}, "form that is not known"),
        (METADATA, {"3": 'v1\n{"conf":{}}'}, {"3": COMMIT}, "form that is not known"),
        ("{}", {"3": offsets()}, {"3": COMMIT}, "form that is not known"),
        ("", {"3": offsets()}, {"3": COMMIT}, "form that is not known"),
        (METADATA, {"3": offsets(**{PROVIDER: "com.acme.Store"})}, {"3": COMMIT}, "a store that Spark does not have"),
    ],
)
def test_any_other_is_refused(metadata: str, begun: dict[str, str], done: dict[str, str], said: str) -> None:
    """Before anything is read of the state."""
    with pytest.raises(InputError, match=said):
        query_log(metadata, begun, done)


def properties(*variables: tuple[str, str, bool]) -> str:
    """As Spark tells them."""
    told: list[dict[str, Any]] = [
        {"stateName": name, "stateVariableType": type_, "ttlEnabled": has_ttl} for name, type_, has_ttl in variables
    ]
    return json.dumps({"timeMode": "None", "stateVariables": told})


def test_variables_are_known_by_name_and_kind() -> None:
    """Timers have no name of their own."""
    told = properties(
        ("v", "ValueState", True),
        ("l", "ListState", False),
        ("m", "MapState", False),
        ("$procTimers", "TimerState", False),
    )
    for operator in ("transformWithStateExec", "transformWithStateInPandasExec", "transformWithStateInPySparkExec"):
        found = variables_of(operator, told)
        assert {name: each.kind for name, each in found.items()} == {
            "v": "value",
            "l": "list",
            "m": "map",
            "timers": "timers",
        }
        assert [each.has_ttl for each in found.values()] == [True, False, False, False]
    assert list(variables_of("applyInPandasWithState", None)) == ["state", "timeouts"]
    assert list(variables_of("stateStoreSave", None)) == ["state"]


@pytest.mark.parametrize(
    ("operator", "told", "said"),
    [
        ("symmetricHashJoin", None, "cannot be taken over"),
        ("dedupe", None, "cannot be taken over"),
        ("transformWithStateExec", None, "form that is not known"),
        ("transformWithStateExec", "{}", "form that is not known"),
        ("transformWithStateExec", properties(("q", "QueueState", False)), "type that is not known"),
    ],
)
def test_what_is_not_known_is_refused(operator: str, told: str | None, said: str) -> None:
    """By name."""
    with pytest.raises(InputError, match=said):
        variables_of(operator, told)
