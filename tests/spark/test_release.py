"""A release of Spark that is too old is told where the sink is made."""

import pyspark
import pytest

import statebackend as sb
from statebackend.errors import SettingsError
from statebackend.spark.release import check_release
from tests.knobs import settings_with


@pytest.mark.parametrize("release", ["3.5.6", "3.0.0", "2.4.8", "3.10.1"])
def test_pyspark_3_is_refused(release, monkeypatch) -> None:
    """By a setting error that names the release, before anything is opened."""
    monkeypatch.setattr(pyspark, "__version__", release)
    with pytest.raises(SettingsError, match=release):
        sb.spark.StatefulSink(lambda df, batch_id, backend: None, settings_with(job="j", primary="memory://p"))


@pytest.mark.parametrize("release", ["4.0.0", "4.0.0.dev2", "4.3.0", "5.0.0", "10.0", "unknown"])
def test_any_later_one_passes(release) -> None:
    check_release(release)
