"""The alert rules: each asks for series that exist, fires when it should, and is silent when it should be."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from tests.observers.test_dashboard import NAME, known

RULES: Final = Path(__file__).parents[2] / "docs" / "grafana" / "alerts.yml"
TEXT: Final = RULES.read_text(encoding="utf-8")
ALERTS: Final = re.findall(r"- alert: (\w+)\n", TEXT)

MINUTES: Final = 90
GROWS: Final = f"0+1x{MINUTES}"
STANDS: Final = f"5+0x{MINUTES}"

# The series by which each fires, and by which it does not, minute by minute: of the job "a" in both.
CASES: Final[dict[str, tuple[dict[str, str], dict[str, str]]]] = {
    "StatebackendNoCheckpoint": (
        {"statebackend_checkpoints_total": STANDS},
        {"statebackend_checkpoints_total": GROWS},
    ),
    "StatebackendUploadsFail": (
        {"statebackend_uploads_failed_total": GROWS},
        {"statebackend_uploads_failed_total": STANDS},
    ),
    "StatebackendBasesFail": (
        {"statebackend_failed_materializations_total": GROWS},
        {"statebackend_failed_materializations_total": f"0x{MINUTES - 10} 1x10"},
    ),
    "StatebackendLocalCopiesDropped": (
        {'statebackend_local_copies_dropped_total,reason="full"': GROWS},
        {'statebackend_local_copies_dropped_total,reason="full"': f"0x{MINUTES - 3} 1x3"},
    ),
    "StatebackendLocalCopiesDamaged": (
        {'statebackend_local_fallbacks_total,reason="segment checksum differs"': GROWS},
        {'statebackend_local_fallbacks_total,reason="missing"': GROWS},
    ),
    "StatebackendOlderCheckpointOpened": (
        {"statebackend_older_checkpoints_opened_total": GROWS},
        {"statebackend_older_checkpoints_opened_total": STANDS},
    ),
    "StatebackendBatchesMissed": (
        {"statebackend_missed_batches_total": GROWS},
        {"statebackend_missed_batches_total": STANDS},
    ),
    "StatebackendPublicationsFail": (
        {"statebackend_failed_publications_total": GROWS},
        {"statebackend_failed_publications_total": f"0x{MINUTES - 3} 1x3"},
    ),
    "StatebackendCheckpointsSlow": (
        {"statebackend_checkpoint_seconds_sum": f"0+40x{MINUTES}", "statebackend_checkpoint_seconds_count": GROWS},
        {"statebackend_checkpoint_seconds_sum": f"0+20x{MINUTES}", "statebackend_checkpoint_seconds_count": GROWS},
    ),
    "StatebackendRowsLate": (
        {"statebackend_late_rows_total": f"0+1000x{MINUTES}"},
        {"statebackend_late_rows_total": f"0+10x{MINUTES}"},
    ),
    "StatebackendFenced": (
        {"statebackend_fenced_checkpoints_total": f"0x{MINUTES - 3} 1x3"},
        {"statebackend_fenced_checkpoints_total": STANDS},
    ),
    "StatebackendSweepsFail": (
        {"statebackend_failed_sweeps_total": GROWS},
        {"statebackend_failed_sweeps_total": f"0x{MINUTES - 10} 1x10"},
    ),
    "StatebackendFollowerStale": (
        {"statebackend_follower_staleness_seconds": f"0x{MINUTES - 5} 61x5"},
        {"statebackend_follower_staleness_seconds": f"0x{MINUTES - 5} 59x5"},
    ),
    "StatebackendMirrorLags": (
        {"statebackend_mirror_lag_seconds": f"0x{MINUTES - 10} 601x10"},
        {"statebackend_mirror_lag_seconds": f"0x{MINUTES - 10} 599x10"},
    ),
    "StatebackendRequestsDear": (
        {"statebackend_usd_month": f"101x{MINUTES}"},
        {"statebackend_usd_month": f"99x{MINUTES}"},
    ),
}


def test_every_rule_asks_for_series_that_exist_and_has_a_case() -> None:
    """A name that is gone would be a rule that never fires."""
    assert set(ALERTS) == set(CASES)
    assert set(NAME.findall(TEXT)) <= known().keys()
    labels = set(re.findall(r"by \((\w+)\)", TEXT)) | set(re.findall(r"labels\.(\w+)", TEXT))
    assert labels == {"state_job"}
    for name, label in re.findall(r"(statebackend_\w+){(\w+)", TEXT):
        assert label in known()[name]


def case_of(alert: str, series: dict[str, str], *, fires: bool) -> dict[str, Any]:
    """A test of promtool: these series for so many minutes, and then the alert or none."""
    inputs: list[dict[str, str]] = []
    for name, values in series.items():
        metric, _, label = name.partition(",")
        inputs.append({"series": f'{metric}{{state_job="a"{"," if label else ""}{label}}}', "values": values})
    asked = {
        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing",state_job="a"}})',
        "eval_time": f"{MINUTES}m",
    }
    return {
        "interval": "1m",
        "input_series": inputs,
        "promql_expr_test": [asked | {"exp_samples": [{"labels": "{}", "value": 1}] if fires else []}],
    }


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run it, or skip the test."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("the alert rules are NOT TRIED: promtool is missing; apt-get install prometheus brings it")
    return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_rules_are_rules() -> None:
    """By Prometheus's own checker."""
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def test_each_rule_fires_when_it_should_and_not_else(tmp_path: Path) -> None:
    """All in one run of promtool, which starts a storage for each case."""
    cases = [
        case_of(alert, series, fires=fires)
        for alert, both in CASES.items()
        for fires, series in zip((True, False), both, strict=True)
    ]
    file = tmp_path / "cases.yml"  # JSON is YAML
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    done = promtool("test", "rules", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    for fires, series in zip((True, False), CASES["StatebackendUploadsFail"], strict=True):
        wrong = case_of("StatebackendUploadsFail", series, fires=not fires)
        file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [wrong]}))
        assert promtool("test", "rules", str(file)).returncode != 0  # so the cases above could have failed
