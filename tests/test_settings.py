"""Settings check themselves when they are made, wherever they come from, and name what is wrong."""

import math
import operator
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from statebackend.errors import LocalRootError, PrimaryUrlError, SettingsError, UnknownSettingError
from statebackend.settings import (
    AzureSettings,
    MiB,
    Prices,
    S3Settings,
    Secret,
    Settings,
    UploadSettings,
    check_primary,
)
from statebackend.settings.sources import RENAMED, as_spark, as_variable, dotted_names

BASE: dict[str, Any] = {"job": "fleet", "primary": "memory://fleet"}
NOT_NEGATIVE_S = [
    "checkpoints_retained_s",
    "persist_delay_s",
    "upload.timeout_s",
    "upload.retry_delay_s",
    "upload.primary_outage_s",
    "secondary_grace_s",
    "cache_idle_s",
    "sweep_interval_s",
    "materialize_interval_s",
    "materialize_changelog_ratio",
    "materialize_retry_delay_s",
    "s3.outage_s",
    "azure.outage_s",
]
POSITIVE_S = [
    "persist_delay_max_s",
    "commit_timeout_s",
    "close_timeout_s",
    "local_read_timeout_s",
    "s3.connect_timeout_s",
    "s3.read_timeout_s",
    "s3.request_timeout_s",
    "s3.requests_per_s_max",
    "s3.retries_per_s_max",
    "azure.connect_timeout_s",
    "azure.read_timeout_s",
    "azure.request_timeout_s",
    "azure.requests_per_s_max",
    "azure.retries_per_s_max",
]
NOT_NEGATIVE_USD = [
    "put_budget_usd_month",
    "prices.put_usd_per_1000",
    "prices.get_usd_per_1000",
    "prices.list_usd_per_1000",
    "prices.delete_usd_per_1000",
]
AT_LEAST_ONE = [
    "in_flight_bytes_max",
    "upload.attempts_max",
    "restore_concurrency_max",
    "discard_concurrency_max",
    "io_threads_max",
    "cpu_threads_max",
    "s3.connections_max",
    "s3.part_concurrency_max",
    "azure.connections_max",
    "azure.block_concurrency_max",
]
NOT_NEGATIVE_BYTES = [
    "persist_size_threshold_bytes",
    "preemptive_persist_threshold_bytes",
    "materialize_changelog_bytes_min",
    "materialize_changelog_changes_min",
    "materialize_handles_max",
    "materialize_fan_in",
    "materialize_failures_max",
    "cache_bytes_max",
    "inline_bytes_max",
    "ranges_cached_max",
    "local_bytes_max",
]

PARTS = ["s3.part_bytes", "s3.multipart_threshold_bytes", "azure.block_bytes", "azure.block_threshold_bytes"]


RECORDS: dict[str, Any] = {"s3": S3Settings, "azure": AzureSettings, "upload": UploadSettings, "prices": Prices}


def settings(**values: Any) -> Settings:
    """Made directly; `upload.timeout_s` is made in its record."""
    plain = {name: value for name, value in values.items() if "." not in name}
    for record, kind in RECORDS.items():
        fields = {name.removeprefix(f"{record}."): value for name, value in values.items() if name.startswith(record)}
        plain[record] = kind(**fields)
    return Settings(**{**BASE, **plain})


def value_of(made: Settings, name: str) -> Any:
    return operator.attrgetter(name)(made)


def test_the_defaults_are_legal_and_only_job_and_primary_are_needed() -> None:
    """The least a person has to say."""
    made = settings()
    assert (made.job, made.primary, made.local, made.max_parallelism) == ("fleet", "memory://fleet", (), 128)
    with pytest.raises(SettingsError, match="missing") as caught:
        Settings(job="fleet")  # type: ignore[call-arg]
    assert caught.value.facts == {"name": "primary"}


def test_every_number_has_its_bounds_tested_here() -> None:
    """A new knob without a check would be the one that somebody sets to -1."""
    tested = {
        *NOT_NEGATIVE_S,
        *POSITIVE_S,
        *NOT_NEGATIVE_USD,
        *AT_LEAST_ONE,
        *NOT_NEGATIVE_BYTES,
        *PARTS,
        *("table_memory_bytes", "state_memory_bytes", "max_parallelism", "checkpoints_retained"),
    }
    numbers = {name for name in dotted_names(Settings) if type(value_of(settings(), name)) in {int, float}}
    assert tested == numbers | {"inline_bytes_max"}  # by default none: the number depends on the primary


@pytest.mark.parametrize("name", [*NOT_NEGATIVE_S, *POSITIVE_S, *NOT_NEGATIVE_USD])
@pytest.mark.parametrize("value", [-0.001, -math.inf, math.inf, math.nan])
def test_a_duration_or_a_price_is_finite_and_not_negative(name: str, value: float) -> None:
    """Infinity is refused too: a wait without an end is how a stream hangs for ever."""
    with pytest.raises(SettingsError) as caught:
        settings(**{name: value})
    assert name in caught.value.facts


def test_a_budget_does_not_shorten_the_persist_delay() -> None:
    """A delay above the most that the budget may make of it is one of the two numbers got wrong."""
    with pytest.raises(SettingsError) as caught:
        settings(put_budget_usd_month=1, persist_delay_s=11, persist_delay_max_s=10)
    assert set(caught.value.facts) == {"persist_delay_s", "persist_delay_max_s"}
    assert settings(persist_delay_s=11).persist_delay_s == 11


@pytest.mark.parametrize("name", POSITIVE_S)
def test_a_deadline_must_leave_some_time(name: str) -> None:
    """Zero would give up before it began."""
    with pytest.raises(SettingsError) as caught:
        settings(**{name: 0})
    assert name in caught.value.facts


@pytest.mark.parametrize("name", [*NOT_NEGATIVE_S, *NOT_NEGATIVE_USD])
def test_a_pause_may_be_nothing(name: str) -> None:
    """Zero means "not at all", which is legal for a delay and a grace."""
    assert value_of(settings(**{name: 0}), name) == 0


@pytest.mark.parametrize("name", AT_LEAST_ONE)
@pytest.mark.parametrize("value", [0, -1])
def test_a_bound_lets_at_least_one_through(name: str, value: int) -> None:
    """A bound of zero would wait for ever."""
    with pytest.raises(SettingsError) as caught:
        settings(persist_size_threshold_bytes=0, **{name: value})
    assert name in caught.value.facts
    assert value_of(settings(persist_size_threshold_bytes=0, **{name: 1}), name) == 1


@pytest.mark.parametrize("name", NOT_NEGATIVE_BYTES)
def test_a_threshold_may_be_zero_but_not_negative(name: str) -> None:
    """Zero sends at once."""
    assert value_of(settings(**{name: 0}), name) == 0
    with pytest.raises(SettingsError) as caught:
        settings(**{name: -1})
    assert name in caught.value.facts


def test_a_full_segment_must_fit_in_flight() -> None:
    """Equal is enough; one byte more is refused, and both settings are named."""
    settings(persist_size_threshold_bytes=1000, in_flight_bytes_max=1000)
    with pytest.raises(SettingsError) as caught:
        settings(persist_size_threshold_bytes=1001, in_flight_bytes_max=1000)
    assert dict(caught.value.facts) == {"persist_size_threshold_bytes": 1001, "in_flight_bytes_max": 1000}


@pytest.mark.parametrize(
    ("part", "threshold"), [(5 * MiB - 1, 16 * MiB), (9 * MiB, 9 * MiB - 1), (0, 0), (-1, 16 * MiB)]
)
def test_a_part_is_what_s3_takes_and_no_larger_than_what_is_cut_into_parts(part: int, threshold: int) -> None:
    """S3 refuses smaller ones when all have been sent; both settings are named."""
    settings(**{"s3.part_bytes": 5 * MiB, "s3.multipart_threshold_bytes": 5 * MiB})
    with pytest.raises(SettingsError) as caught:
        settings(**{"s3.part_bytes": part, "s3.multipart_threshold_bytes": threshold})
    assert dict(caught.value.facts) == {"s3.part_bytes": part, "s3.multipart_threshold_bytes": threshold}


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9000", "https://s3.example.com", "https://s3.example.com:9000/"])
def test_an_endpoint_is_a_scheme_and_a_host(url: str) -> None:
    """Or nothing, for Amazon's own."""
    assert S3Settings(endpoint=url).endpoint == url


@pytest.mark.parametrize(
    "url",
    ["s3.example.com", "ftp://host", "http://", "http://host/path", "http://host?x", "http://host:port", "http://["],
)
def test_any_other_endpoint_is_refused(url: str) -> None:
    """Before the first request goes to a place that nobody meant."""
    with pytest.raises(SettingsError, match=r"s3\.endpoint"):
        S3Settings(endpoint=url)


AZURE_KEY = Secret("a2V5IG9mIGFuIGFjY291bnQ=")


@pytest.mark.parametrize(
    "given",
    [
        {"endpoint": "http://127.0.0.1:10000/account1", "account_key": AZURE_KEY},
        {"endpoint": "https://account1.blob.core.chinacloudapi.cn/", "sas_token": Secret("?sv=1&sig=x")},
        {"block_bytes": MiB, "block_threshold_bytes": MiB},
    ],
)
def test_settings_for_azure(given: dict[str, Any]) -> None:
    """As the page has them; secrets stay out of pickles, and what is left is still a setting."""
    found = AzureSettings(**given)
    assert {name: getattr(found, name) for name in given} == given
    assert "a2V5" not in repr(found)
    assert b"a2V5" not in pickle.dumps(found)
    assert pickle.loads(pickle.dumps(found)).endpoint == found.endpoint


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"endpoint": "http://host/account/container"}, r"azure\.endpoint"),
        ({"endpoint": "https://host?sig=hush"}, r"azure\.endpoint"),
        ({"account_key": AZURE_KEY, "sas_token": Secret("sig=x")}, "two kinds"),
        ({"account_key": Secret("hush hush")}, "must be base64"),
        ({"account_key": Secret("")}, "must be base64"),
        ({"block_bytes": MiB - 1}, r"azure\.block_bytes"),
        ({"block_bytes": 9 * MiB, "block_threshold_bytes": 8 * MiB}, r"azure\.block_bytes"),
        ({"connections_max": 0}, r"azure\.connections_max"),
        ({"outage_s": -1.0}, r"azure\.outage_s"),
    ],
)
def test_settings_for_azure_that_make_no_sense_are_refused_and_not_shown(given: dict[str, Any], told: str) -> None:
    """Before the first request."""
    with pytest.raises(SettingsError) as caught:
        AzureSettings(**given)
    assert re.search(told, f"{caught.value} {dict(caught.value.facts)}")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("job", ["a", "fleet-2013_v1.0", "0", "x" * 100])
def test_a_job_name_is_a_file_name_everywhere(job: str) -> None:
    """Letters, digits, dot, underscore and dash, at most 100."""
    assert settings(job=job).job == job


@pytest.mark.parametrize("job", ["", ".hidden", "..", "-dash", "a/b", "a b", "a\n", "ümlaut", "x" * 101, "a\0b"])
def test_any_other_job_name_is_refused(job: str) -> None:
    """It becomes a part of keys and paths, so it must not lead anywhere else."""
    with pytest.raises(SettingsError) as caught:
        settings(job=job)
    assert caught.value.facts["job"] == job


@pytest.mark.parametrize(
    "url",
    [
        "memory://name",
        "memory://name/",
        "file:///data/state",
        "file://localhost/data",
        "s3://bucket",
        "s3://bucket/",
        "s3://my.bucket-1/states/of=all/v1.0/",
        "azure://account1/container",
        "azure://account1/my-container-1/states/of=all/v1.0/",
        "azure://account1/$root/states",
    ],
)
def test_a_primary_of_a_known_form_is_taken(url: str) -> None:
    """Each form that the error message lists, and its equal spellings."""
    assert settings(primary=url).primary == url


@pytest.mark.parametrize(
    "url",
    [
        "",
        "name",
        "/data/state",
        "C:\\data",
        "http://host/path",
        "gs://bucket",
        "memory:",
        "memory://",
        "memory:///path",
        "memory://name/path",
        "file:",
        "file://",
        "file:///",
        "file://data/state",
        "file:relative/path",
        "file:///data?mode=fast",
        "file:///data#part",
        "file://[",
        "s3:",
        "s3://",
        "s3:///prefix",
        "s3://b",
        "s3://bucket//prefix",
        "s3://bucket/a//b",
        "s3://bucket/../b",
        "s3://bucket/.hidden",
        "s3://bucket/a b",
        "s3://bucket:9000/prefix",
        "azure:",
        "azure://account1",
        "azure://account1/",
        "azure://account1/co",
        "azure://account1/Container",
        "azure://account1/my--container/x",
        "azure://account1/container-/x",
        "azure://Account/container",
        "azure://account1.blob.core.windows.net/container",
        "azure:///container/prefix",
        "azure://account1/container//x",
        "azure://account1/container/../x",
        "azure://account1/container/x?sig=y",
        "s3://bucket/prefix?region=x",
        "s3://bucket/" + "a/" * 17,
    ],
)
def test_any_other_primary_is_refused_with_the_known_forms(url: str) -> None:
    """The message is the manual here: it lists what would have been right."""
    for make in (lambda: settings(primary=url), lambda: check_primary(url)):
        with pytest.raises(PrimaryUrlError) as caught:
            make()
        assert caught.value.facts["primary"] == url
        assert "memory://NAME" in str(caught.value)
        assert "file:///" in str(caught.value)
        assert "s3://" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "instead"),
    [
        ("abfss://container@account.dfs.core.windows.net/path", "docs/how-to/azure.md"),
        ("ABFSS://container@account.dfs.core.windows.net/path", "docs/how-to/azure.md"),
        ("abfss://container@account.dfs.core.windows.net/path", "azure://ACCOUNT/CONTAINER/PREFIX here"),
        ("wasbs://container@account.blob.core.windows.net", "docs/how-to/azure.md"),
        ("hdfs://namenode:8020/state", "docs/how-to/custom-store.md"),
        ("gs://bucket/state", "docs/how-to/google.md"),
        ("s3a://bucket/prefix", "S3 is s3://"),
    ],
)
def test_a_scheme_that_spark_knows_is_refused_with_what_to_use_instead(url: str, instead: str) -> None:
    """A container before an `@` is no password: the message is about the scheme."""
    with pytest.raises(PrimaryUrlError, match=instead) as caught:
        settings(primary=url)
    assert caught.value.facts["primary"] == url
    if instead.startswith("docs/"):
        assert (Path(__file__).parents[1] / instead).is_file()


def test_a_path_that_is_escaped_is_refused_with_what_to_write(tmp_path: Path) -> None:
    """`Path.as_uri` escapes, and a file:// primary is no place where that is undone: it would be another directory."""
    directory = tmp_path / "my dir, 100%"
    with pytest.raises(PrimaryUrlError, match="taken as it is") as caught:
        settings(primary=directory.as_uri())
    right = caught.value.facts["perhaps"]
    assert right == f"file://{directory}"
    assert settings(primary=right).primary == right


def test_a_directory_that_has_such_a_name_is_taken_as_it_is(tmp_path: Path) -> None:
    """Else the job that lies there could not be opened any more."""
    (tmp_path / "my%20dir").mkdir()
    primary = f"file://{tmp_path}/my%20dir"
    assert settings(primary=primary).primary == primary


def test_credentials_are_not_shown_whatever_the_scheme() -> None:
    """Even where the scheme is refused anyway."""
    with pytest.raises(PrimaryUrlError, match="must not hold credentials") as caught:
        settings(primary="abfss://user:hush@account/path")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("unfit", ["\0", "\ud800"])
@pytest.mark.parametrize(
    "changed",
    [
        lambda unfit: {"primary": f"file:///data/{unfit}"},
        lambda unfit: {"primary": f"memory://{unfit}"},
        lambda unfit: {"primary": f"s3://bucket/{unfit}"},
        lambda unfit: {"local": ("/fine", f"/data/{unfit}")},
        lambda unfit: {"cache_dir": f"/data/{unfit}"},
        lambda unfit: {"table_dir": f"/data/{unfit}"},
        lambda unfit: {"job": unfit},
        lambda unfit: {"local": unfit},
        lambda unfit: {"local": [1, unfit]},
        lambda unfit: {"compression": unfit},
        lambda unfit: {"persist_delay_s": unfit},
    ],
)
def test_a_text_that_no_file_can_be_named_by_is_refused_at_once(
    changed: Callable[[str], dict[str, object]], unfit: str
) -> None:
    """Not by an error of `open` or of an encoder, when the stream has run for an hour. It names the setting."""
    (name,) = changed(unfit)
    for make in (settings, lambda **given: Settings.from_mapping({**BASE, **given})):
        with pytest.raises(SettingsError) as caught:
            make(**changed(unfit))
        assert name in str(caught.value)
        str(caught.value).encode()  # it can be printed


def test_a_secret_that_no_header_can_have_is_refused_and_not_shown() -> None:
    """As any other text; from a mapping too."""
    with pytest.raises(SettingsError, match=r"s3\.secret_access_key") as caught:
        Settings.from_mapping({**BASE, "s3.access_key_id": "id", "s3.secret_access_key": "hush\0hush"})
    assert "hush" not in str(caught.value)
    with pytest.raises(SettingsError, match=r"s3\.region"):
        Settings.from_mapping({**BASE, "s3.region": "\ud800"})


@pytest.mark.parametrize("root", ["relative", "./here", "~/state", ""])
def test_a_local_root_is_absolute(root: str) -> None:
    """Where it lies must not depend on the directory that Spark was started in."""
    with pytest.raises(LocalRootError) as caught:
        settings(local=("/fine", root))
    assert caught.value.facts["root"] == root


@pytest.mark.parametrize("name", ["cache_dir", "table_dir"])
@pytest.mark.parametrize("directory", ["relative", "./here", "~/state"])
def test_a_directory_for_what_is_not_kept_is_absolute_or_left_to_us(name: str, directory: str) -> None:
    """As for a local root; empty is the default."""
    assert getattr(settings(), name) == ""
    assert getattr(settings(**{name: "/data/here"}), name) == "/data/here"
    with pytest.raises(SettingsError) as caught:
        settings(**{name: directory})
    assert caught.value.facts[name] == directory


def test_rocksdb_needs_some_memory() -> None:
    """The least is legal; one byte less is named."""
    assert settings(table="rocksdb", table_memory_bytes=4 << 20).table == "rocksdb"
    with pytest.raises(SettingsError) as caught:
        settings(table_memory_bytes=(4 << 20) - 1)
    assert "table_memory_bytes" in caught.value.facts


def test_a_limit_that_holds_no_state_is_refused() -> None:
    """Nor does it go with a table that was chosen. 0 is no limit."""
    assert settings(state_memory_bytes=0, table="runs").state_memory_bytes == 0
    assert settings(state_memory_bytes=4 << 10).state_memory_bytes == 4 << 10
    for wrong in ({"state_memory_bytes": (4 << 10) - 1}, {"state_memory_bytes": -1}):
        with pytest.raises(SettingsError) as caught:
            settings(**wrong)
        assert "state_memory_bytes" in caught.value.facts
    with pytest.raises(SettingsError) as caught:
        settings(state_memory_bytes=4 << 10, table="rocksdb")
    assert "table" in caught.value.facts
    with pytest.raises(SettingsError):
        settings(table="other")


@pytest.mark.parametrize("second", ["/data/a", "/data/a/", "/data/b/../a", "/data//a"])
def test_local_roots_differ_however_they_are_spelt(second: str) -> None:
    """Two names of one directory would be two owners of it."""
    with pytest.raises(LocalRootError):
        settings(local=("/data/a", second))


def test_a_list_of_local_roots_becomes_a_tuple() -> None:
    """Settings are values: they can be compared, hashed and shared."""
    made = settings(local=["/data/a", "/data/b"])
    assert made.local == ("/data/a", "/data/b")
    assert hash(made) == hash(settings(local=("/data/a", "/data/b")))


@pytest.mark.parametrize("value", [0, -1, 32_769])
def test_max_parallelism_lies_within_its_bounds(value: int) -> None:
    """Both ends are included."""
    assert [settings(max_parallelism=end).max_parallelism for end in (1, 32_768)] == [1, 32_768]
    with pytest.raises(SettingsError) as caught:
        settings(max_parallelism=value)
    assert dict(caught.value.facts) == {"max_parallelism": value}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compression", "gzip"),
        ("compression", None),
        ("job", 5),
        ("primary", None),
        ("local", "/data/a"),
        ("local", (1,)),
        ("local", (Path("/data/a"),)),
        ("max_parallelism", "128"),
        ("max_parallelism", 12.5),
        ("io_threads_max", True),
        ("persist_delay_s", "fast"),
        ("persist_delay_s", None),
    ],
)
def test_a_value_of_the_wrong_type_is_a_settings_error_that_names_the_setting(name: str, value: object) -> None:
    """Also where nothing between the person and the constructor checks types; a string is not a list of roots."""
    with pytest.raises(SettingsError) as caught:
        settings(**{name: value})
    assert caught.value.facts == {name: value}


def test_a_wrong_type_is_told_in_the_words_of_python() -> None:
    """Not in those of JSON."""
    with pytest.raises(SettingsError, match="local has a wrong type or value: Expected `list`, got `str`"):
        settings(local="/data/a")


def test_settings_are_frozen_values_that_can_be_sent_to_a_worker() -> None:
    """Nobody changes them under a running backend, and a pickled copy is equal."""
    made = settings(local=("/data/a",), persist_delay_s=1)
    assert pickle.loads(pickle.dumps(made)) == made
    with pytest.raises(AttributeError):
        made.job = "other"  # type: ignore[misc]


def test_a_copy_with_changes_is_checked_as_well() -> None:
    """`msgspec.structs.replace` is no way around the checks."""
    with pytest.raises(SettingsError):
        msgspec.structs.replace(settings(), max_parallelism=0)


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("persist_delay", "persist_delay_s"),
        ("persist_delay_ms", "persist_delay_s"),
        ("jobs", "job"),
        ("primry", "primary"),
        ("max_paralellism", "max_parallelism"),
        ("io_thread_max", "io_threads_max"),
    ],
)
def test_an_unknown_name_is_refused_with_the_closest_known_one(name: str, closest: str) -> None:
    """A misspelt setting that is silently ignored is the worst of all."""
    with pytest.raises(UnknownSettingError) as caught:
        Settings.from_mapping({**BASE, name: 1})
    assert caught.value.facts["name"] == name
    assert repr(closest) in caught.value.message


@pytest.mark.parametrize(
    ("record", "name", "closest"),
    [
        (Settings, "checkpoint_retained", "checkpoints_retained"),
        (Settings, "ranges_kept", "ranges_cached_max"),
        (Settings, "s3_region", "s3=S3Settings(region=...)"),
        (Settings, "s3.region", "s3=S3Settings(region=...)"),
        (Settings, "secret_access_key", "s3=S3Settings(secret_access_key=...)"),
        (S3Settings, "regio", "region"),
        (AzureSettings, "account_keys", "account_key"),
        (UploadSettings, "upload_timeout_s", "timeout_s"),
        (Prices, "put_usd_per_thousand", "put_usd_per_1000"),
    ],
)
def test_an_unknown_argument_is_refused_as_an_unknown_name_is(record: Any, name: str, closest: str) -> None:
    """With the closest one, or the new one, as it is written there; not by a bare `TypeError`."""
    needed = BASE if record is Settings else {}
    with pytest.raises(UnknownSettingError) as caught:
        record(**needed, **{name: 1})
    assert caught.value.facts == {"name": name}
    assert repr(closest) in caught.value.message


@pytest.mark.parametrize("record", [Settings, S3Settings, AzureSettings, UploadSettings, Prices])
def test_settings_without_their_names_are_refused(record: Any) -> None:
    """Nobody remembers an order of fifty."""
    with pytest.raises(SettingsError, match=f"by name, as {record.__name__}"):
        record("fleet", "memory://fleet")


def test_an_unknown_name_that_is_like_no_other_is_refused_with_all_known_ones() -> None:
    """The list is what one would look up next."""
    with pytest.raises(UnknownSettingError) as caught:
        Settings.from_mapping({**BASE, "zzz": 1})
    assert all(name in caught.value.message for name in dotted_names(Settings))


OLD_NAMES = """
    s3_endpoint s3_region s3_access_key_id s3_secret_access_key s3_session_token s3_addressing s3_connections_max
    s3_connect_timeout_s s3_read_timeout_s s3_request_timeout_s s3_multipart_threshold_bytes s3_part_bytes
    s3_part_concurrency_max s3_requests_per_s_max s3_retries_per_s_max s3_outage_s upload_attempts_max upload_timeout_s
    retry_delay_s primary_outage_s put_usd_per_1000 get_usd_per_1000 list_usd_per_1000 delete_usd_per_1000 native_bases
    ranges_kept
"""


def test_what_is_missing_is_told_by_the_name_that_it_would_be_given_by() -> None:
    """Of a program whose variables were not set one has to say which these are."""
    with pytest.raises(SettingsError, match="a job needs STATEBACKEND_JOB and STATEBACKEND_PRIMARY: there is no"):
        Settings.from_env({"PATH": "/bin"})
    with pytest.raises(SettingsError, match=r"a job needs spark\.statebackend\.primary: there is no default"):
        Settings.from_spark_conf({"spark.statebackend.job": "fleet"})
    with pytest.raises(SettingsError, match="a job needs primary: there is no default"):
        Settings.from_mapping({"job": "fleet"})


def test_every_old_name_has_a_successor() -> None:
    """Which exists, and is a setting of its own."""
    assert set(OLD_NAMES.split()) == set(RENAMED)
    assert set(RENAMED.values()) <= set(dotted_names(Settings))
    assert len(set(RENAMED.values())) == len(RENAMED)


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_an_old_name_is_refused_with_the_new_one_as_its_source_spells_it(old: str, new: str, tmp_path: Path) -> None:
    """Wherever it stands: a setting that an upgrade silently drops is as bad as a misspelt one."""
    file = tmp_path / "job.toml"
    file.write_text(f'[statebackend]\njob = "fleet"\nprimary = "memory://fleet"\n{old} = "hush"\n')
    variables = {as_variable("job"): "fleet", as_variable("primary"): "memory://fleet", as_variable(old): "hush"}
    ways: list[tuple[Callable[[], Settings], str]] = [
        (lambda: Settings.from_mapping({**BASE, old: "hush"}), new),
        (lambda: Settings.from_toml(file), new),
        (lambda: Settings.from_env(variables), as_variable(new)),
        (lambda: Settings.from_spark_conf([(as_spark(old), "hush")]), as_spark(new)),
    ]
    for make, spelt in ways:
        with pytest.raises(UnknownSettingError) as caught:
            make()
        assert repr(spelt) in caught.value.message
        assert caught.value.facts == {"name": old}  # and not the value, which may be a secret


@pytest.mark.parametrize(
    ("name", "closest"),
    [
        ("s3.endpont", "s3.endpoint"),
        ("s3_endpont", "s3.endpoint"),
        ("upload.timeout", "upload.timeout_s"),
        ("uploads.timeout_s", "upload.timeout_s"),
        ("prices.put_usd", "prices.put_usd_per_1000"),
    ],
)
def test_an_unknown_name_inside_a_record_is_refused_with_the_closest_one(name: str, closest: str) -> None:
    """As for any other; in the environment as it is spelt there."""
    with pytest.raises(UnknownSettingError) as caught:
        Settings.from_mapping({**BASE, name: 1})
    assert repr(closest) in caught.value.message
    record, _, field = name.partition(".")
    if record in RECORDS:
        with pytest.raises(UnknownSettingError) as caught:
            Settings.from_mapping({**BASE, record: {field: 1}})
        assert caught.value.facts == {"name": name}
    with pytest.raises(UnknownSettingError) as caught:
        Settings.from_env({as_variable("job"): "fleet", as_variable(name): "1"})
    assert repr(as_variable(closest)) in caught.value.message


def test_records_come_from_everywhere(tmp_path: Path) -> None:
    """A table inside the table in TOML, two underscores in the environment, a dot elsewhere, or a mapping."""
    expected = settings(**{"s3.region": "eu-central-1", "upload.attempts_max": 5, "prices.put_usd_per_1000": 0.01})
    file = tmp_path / "job.toml"
    file.write_text(
        '[statebackend]\njob = "fleet"\nprimary = "memory://fleet"\n[statebackend.s3]\nregion = "eu-central-1"\n'
        "[statebackend.upload]\nattempts_max = 5\n[statebackend.prices]\nput_usd_per_1000 = 0.01\n"
    )
    texts = {"s3.region": "eu-central-1", "upload.attempts_max": "5", "prices.put_usd_per_1000": "0.01"}
    nested = {"s3": {"region": "eu-central-1"}, "upload": UploadSettings(attempts_max=5)}
    assert expected == Settings.from_toml(file)
    assert expected == Settings.from_mapping({**BASE, **texts})
    assert expected == Settings.from_mapping({**BASE, **nested, "prices.put_usd_per_1000": 0.01})
    assert expected == Settings.from_env({as_variable(name): text for name, text in {**BASE, **texts}.items()})
    assert expected == Settings.from_spark_conf([(as_spark(name), text) for name, text in {**BASE, **texts}.items()])
    assert as_variable("s3.region") == "STATEBACKEND_S3__REGION"
    assert as_spark("s3.region") == "spark.statebackend.s3.region"


def test_a_setting_that_is_given_twice_is_refused() -> None:
    """Which of the two would count is nothing to guess; a record is given by its fields, and not as a text."""
    with pytest.raises(SettingsError) as caught:
        Settings.from_mapping({**BASE, "s3": {"region": "here"}, "s3.region": "there"})
    assert caught.value.facts == {"name": "s3.region"}
    with pytest.raises(SettingsError, match=r"s3\.NAME"):
        Settings.from_env({as_variable("job"): "fleet", as_variable("s3"): "hush"})


def test_a_record_of_another_kind_is_refused() -> None:
    """And not shown: it may hold a secret."""
    for wrong in ({"secret_access_key": "hush"}, UploadSettings(), None):
        with pytest.raises(SettingsError) as caught:
            Settings(**BASE, s3=wrong)  # type: ignore[arg-type]
        assert "hush" not in str(caught.value)
        assert "S3Settings" in str(caught.value)


def test_a_mapping_of_strings_is_converted() -> None:
    """Where everything is text, numbers and lists are read from it."""
    made = Settings.from_mapping(
        {**BASE, "local": " /data/a, /data/b ,", "persist_delay_s": "0.5", "io_threads_max": "3", "compression": "lz4"}
    )
    assert made == settings(local=("/data/a", "/data/b"), persist_delay_s=0.5, io_threads_max=3, compression="lz4")
    assert Settings.from_mapping({**BASE, "local": ""}).local == ()


@pytest.mark.parametrize("given", [[("job", "fleet")], {1: "fleet"}, None, "job"], ids=["pairs", "int", "none", "text"])
def test_what_is_no_mapping_of_names_is_a_settings_error(given: Any) -> None:
    """Not the error of whatever stumbles over it."""
    with pytest.raises(SettingsError, match="a mapping of names"):
        Settings.from_mapping(given)


@pytest.mark.parametrize(
    ("name", "text"), [("persist_delay_s", "soon"), ("io_threads_max", "3.5"), ("compression", "gzip"), ("job", "")]
)
def test_text_that_is_no_value_is_a_settings_error(name: str, text: str) -> None:
    """Not the error of the library that converts."""
    with pytest.raises(SettingsError) as caught:
        Settings.from_mapping({**BASE, name: text})
    assert name in str(caught.value)


def test_a_missing_setting_is_named() -> None:
    """`primary` has no default, and the message says so."""
    with pytest.raises(SettingsError) as caught:
        Settings.from_mapping({"job": "fleet"})
    assert "primary" in str(caught.value)


def test_a_bad_value_from_a_mapping_keeps_its_own_error() -> None:
    """The class tells which setting to change, whatever way the value came."""
    with pytest.raises(PrimaryUrlError):
        Settings.from_mapping({**BASE, "primary": "ftp://x"})
    with pytest.raises(LocalRootError):
        Settings.from_mapping({**BASE, "local": "relative"})


def test_settings_come_from_a_table_of_a_toml_file(tmp_path: Path) -> None:
    """Its own types are used as they are; other tables are somebody else's."""
    path = tmp_path / "job.toml"
    path.write_text(
        '[statebackend]\njob = "fleet"\nprimary = "memory://fleet"\nlocal = ["/data/a"]\npersist_delay_s = 1\n'
        '[other]\njob = "second"\nprimary = "memory://second"\n'
    )
    assert Settings.from_toml(path) == settings(local=("/data/a",), persist_delay_s=1.0)
    assert Settings.from_toml(path, table="other").job == "second"


def test_a_toml_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Editors on Windows write one, and lines that end by two characters."""
    path = tmp_path / "job.toml"
    path.write_bytes(b"\xef\xbb\xbf[statebackend]\r\njob = 'fleet'\r\nprimary = 'file:///data'\r\n")
    assert Settings.from_toml(path) == Settings(job="fleet", primary="file:///data")


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"not [ toml",
        b"\xff\xfe",
        b"",
        b"statebackend = 5\n",
        b"[other]\njob = 'fleet'\n",
        b"[statebackend]\njob = 'fleet'\n",
        b"[statebackend]\njob = 'fleet'\nprimary = 'memory://m'\nlocal = [[1]]\n",
    ],
    ids=["no file", "no toml", "no text", "empty", "no table", "other table", "no primary", "wrong type"],
)
def test_a_toml_file_that_does_not_say_it_is_a_settings_error(content: bytes | None, tmp_path: Path) -> None:
    """Whatever is wrong with the file, it is one kind of error for the caller."""
    path = tmp_path / "job.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError):
        Settings.from_toml(path)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names with the prefix count, all others do not; an unknown one with the prefix is an error."""
    environ = {
        "STATEBACKEND_JOB": "fleet",
        "STATEBACKEND_PRIMARY": "memory://fleet",
        "STATEBACKEND_LOCAL": "/data/a,/data/b",
        "STATEBACKEND_IO_THREADS_MAX": "2",
        "HOME": "/root",
        "JOB": "another",
    }
    expected = settings(local=("/data/a", "/data/b"), io_threads_max=2)
    assert Settings.from_env(environ) == expected
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert Settings.from_env() == expected
    with pytest.raises(UnknownSettingError) as caught:
        Settings.from_env({**environ, "STATEBACKEND_IO_THREAD_MAX": "2"})
    assert caught.value.facts["name"] == "io_thread_max"


def test_settings_come_from_a_spark_configuration() -> None:
    """`getConf().getAll()` gives all of Spark's settings too; only ours are looked at."""
    pairs = [
        ("spark.app.name", "demo"),
        ("spark.statebackend.job", "fleet"),
        ("spark.statebackend.primary", "memory://fleet"),
        ("spark.statebackend.max_parallelism", "16"),
        ("spark.sql.shuffle.partitions", "4"),
    ]
    assert Settings.from_spark_conf(pairs) == settings(max_parallelism=16)
    assert Settings.from_spark_conf(dict(pairs)) == settings(max_parallelism=16)
    with pytest.raises(UnknownSettingError):
        Settings.from_spark_conf([*pairs, ("spark.statebackend.maxParallelism", "16")])


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_one_checkpoint_is_retained(count: int) -> None:
    """The newest is needed by whoever opens the job next."""
    with pytest.raises(SettingsError) as caught:
        settings(checkpoints_retained=count)
    assert "checkpoints_retained" in caught.value.facts
    assert settings(checkpoints_retained=1).checkpoints_retained == 1


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("table", lambda: Settings(**BASE, table="memory")),  # type: ignore[arg-type]
        ("table", lambda: Settings.from_mapping({**BASE, "table": "memory"})),
        ("addressing", lambda: Settings.from_mapping({**BASE, "s3": {"addressing": "memory"}})),
        ("compression", lambda: Settings(**BASE, compression="memory")),  # type: ignore[arg-type]
    ],
)
def test_a_setting_with_few_values_names_them(name: str, made: Callable[[], Settings]) -> None:
    """Who has written one that there is not would have to look them up."""
    values = {"table": ("heap", "rocksdb"), "addressing": ("auto", "path"), "compression": ("lz4", "zstd")}[name]
    with pytest.raises(SettingsError) as refused:
        made()
    assert all(repr(each) in str(refused.value) for each in values)


def test_an_error_elsewhere_names_no_values() -> None:
    """Of a number, there are too many."""
    with pytest.raises(SettingsError, match=r"Expected `float`") as refused:
        Settings.from_mapping({**BASE, "s3": {"outage_s": "x"}})
    assert "it may be" not in str(refused.value)
