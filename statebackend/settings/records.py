"""The settings that belong together: `Settings.s3`, `Settings.azure`, `Settings.upload`, `Settings.prices`."""

import base64
from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import SplitResult, urlsplit

from statebackend.errors import SettingsError
from statebackend.settings.bounds import Count, Deadline, Pause, Price, Rate, check_fields
from statebackend.settings.credentials import CredentialSource, Secret
from statebackend.settings.sources import SettingsRecord

KiB: Final = 1024
"""Bytes: 2^10."""
MiB: Final = 1024 * KiB
"""Bytes: 2^20."""
GiB: Final = 1024 * MiB
"""Bytes: 2^30."""

S3_PART_BYTES_MIN: Final = 5 * MiB
"""Least for `s3.part_bytes`: S3 refuses smaller parts, except the last one."""

S3Addressing = Literal["auto", "path", "virtual"]
"""The ways to name a bucket: in the path of a URL, or as a part of its host."""


class CloudSettings(SettingsRecord, frozen=True, kw_only=True):
    """The settings that every cloud has: where it is, and how hard to press it."""

    endpoint: str = ""
    """URL of the server, where it is not the cloud's own."""
    connections_max: Count = 64
    """Requests under way at a time; further ones wait for a connection."""
    connect_timeout_s: Deadline = 5.0
    """How long opening a connection may take."""
    read_timeout_s: Deadline = 10.0
    """How long the cloud may stay silent while an answer is due."""
    request_timeout_s: Deadline = 60.0
    """How long one request may take in all, body included: one part of a large object, or a small one whole."""
    requests_per_s_max: Rate = 3_000.0
    """Request rate. When the cloud throttles, the rate falls for a while."""
    retries_per_s_max: Rate = 10.0
    """Rate of repeated requests, over all requests together, so that retries do not prolong an outage."""
    outage_s: Pause = 60.0
    """How long a repeatable request is retried after its first failure."""


class S3Settings(CloudSettings, frozen=True, kw_only=True):
    """How to reach the bucket of an `s3://` primary, and how hard to press it.

    Raises `SettingsError` for a value out of bounds, and for credentials that are incomplete.
    """

    endpoint: str = ""
    """URL of an S3 server that is not Amazon's, such as `https://s3.example.com:9000`. Empty: Amazon's, by region."""
    region: str = ""
    """Region of the bucket. Empty: the region of the usual AWS chain, else `us-east-1`."""
    access_key_id: str = ""
    """Empty: credentials come from the usual AWS chain (variables, profile, container or machine role)."""
    secret_access_key: Secret | None = None
    """Goes with `access_key_id`. Left out of pickles: see `Secret`."""
    session_token: Secret | None = None
    """Goes with temporary credentials. Left out of pickles."""
    credentials: CredentialSource | None = None
    """Instead of these three: a function, or its name as `module:function`, that returns `S3Credentials` and their end.
    It is called again before they end, in every process that needs them. It may be `async`."""
    addressing: S3Addressing = "auto"
    """Style of addressing the bucket: in the path, in the host name (`virtual`), or whichever suits the endpoint."""
    multipart_threshold_bytes: int = 16 * MiB
    """Objects larger than this are uploaded in parts, which costs two requests more than there are parts."""
    part_bytes: int = 8 * MiB
    """Size of a part: at least 5 MiB, at most `multipart_threshold_bytes`. Larger for objects of over 10,000 parts."""
    part_concurrency_max: Count = 4
    """Parts of one object in memory and being sent at a time."""

    def __post_init__(self) -> None:
        check_fields(self, "s3.")
        if self.endpoint and not _is_endpoint(self.endpoint):  # not shown: it may hold a password
            raise SettingsError("s3.endpoint must be http://HOST or https://HOST, with or without a port, and no more")
        if self.credentials is not None and (self.access_key_id or self.secret_access_key or self.session_token):
            raise SettingsError("s3.credentials takes the place of keys in the settings: give one or the other")
        if bool(self.access_key_id) != (self.secret_access_key is not None):
            raise SettingsError("s3.access_key_id and s3.secret_access_key go together: give both, or neither")
        if self.session_token is not None and self.secret_access_key is None:
            raise SettingsError("s3.session_token needs s3.access_key_id and s3.secret_access_key")
        if not S3_PART_BYTES_MIN <= self.part_bytes <= self.multipart_threshold_bytes:
            raise SettingsError(
                f"s3.part_bytes must lie between {S3_PART_BYTES_MIN} and s3.multipart_threshold_bytes",
                **{"s3.part_bytes": self.part_bytes, "s3.multipart_threshold_bytes": self.multipart_threshold_bytes},
            )


class AzureSettings(CloudSettings, frozen=True, kw_only=True):
    """How to reach the container of an `azure://` primary, and how hard to press it. Needs the extra `azure`.

    Raises `SettingsError` for a value out of bounds, and for credentials of both kinds. The account key is checked only
    by its form.
    """

    endpoint: str = ""
    """URL of the account where it is not `https://ACCOUNT.blob.core.windows.net`: that of another cloud, or of a server
    that speaks Azure's protocol, with the account behind it, such as `http://127.0.0.1:10000/ACCOUNT` for Azurite."""
    account_key: Secret | None = None
    """A key of the storage account, in base64. Left out of pickles: see `Secret`."""
    sas_token: Secret | None = None
    """A shared access signature, instead of a key. Left out of pickles. With neither, credentials come from
    `azure-identity`: variables, workload or managed identity, or a login."""
    credentials: CredentialSource | None = None
    """Instead of these two: a function, or its name as `module:function`, that returns `AzureCredentials` and their
    end. It is called again before they end, in every process that needs them. It may be `async`."""
    block_threshold_bytes: int = 16 * MiB
    """Objects larger than this are uploaded in blocks, which costs one request more than there are blocks."""
    block_bytes: int = 8 * MiB
    """Size of a block: at most `block_threshold_bytes`. Azure takes 50,000 of them."""
    block_concurrency_max: Count = 4
    """Blocks of one object in memory and being sent at a time."""

    def __post_init__(self) -> None:
        check_fields(self, "azure.")
        if self.endpoint and not _is_endpoint(self.endpoint, parts_max=1):  # not shown: it may hold a password
            raise SettingsError("azure.endpoint must be http://HOST or https://HOST, with or without port and account")
        if self.credentials is not None and (self.account_key or self.sas_token):
            raise SettingsError("azure.credentials takes the place of keys in the settings: give one or the other")
        if self.account_key is not None and self.sas_token is not None:
            raise SettingsError("azure.account_key and azure.sas_token are two kinds of credentials: give one")
        if self.account_key is not None and not _is_base64(self.account_key.reveal()):
            raise SettingsError("azure.account_key must be base64, as Azure shows it")
        if not MiB <= self.block_bytes <= self.block_threshold_bytes:
            raise SettingsError(
                f"azure.block_bytes must lie between {MiB} and azure.block_threshold_bytes",
                **{
                    "azure.block_bytes": self.block_bytes,
                    "azure.block_threshold_bytes": self.block_threshold_bytes,
                },
            )


class UploadSettings(SettingsRecord, frozen=True, kw_only=True):
    """How often and how long an upload, or a commit, is tried."""

    attempts_max: Count = 3
    """Attempts at one segment, the first included."""
    timeout_s: Pause = 1.0
    """After this long another attempt starts *beside* the first. 0: never."""
    retry_delay_s: Pause = 0.5
    """Pause after an attempt that failed with an I/O error."""
    primary_outage_s: Pause = 90.0
    """How long uploads and commits are retried beyond their attempts while the primary is unavailable or does not
    answer. A checkpoint waits as long, and `commit_timeout_s` is extended by it. 0: fail after the last attempt."""

    def __post_init__(self) -> None:
        check_fields(self, "upload.")


PUTS: Final = ("put", "put_if_absent")
"""The methods of `ObjectStore` that a budget for PUTs counts."""


class Prices(SettingsRecord, frozen=True, kw_only=True):
    """Prices of requests to the primary. The defaults are those of S3 Standard, us-east-1, November 2026.

    Requests are counted by the method of `ObjectStore` that makes them. Other methods cost nothing.
    """

    put_usd_per_1000: Price = 0.005
    """Price of 1,000 PUTs, plain or conditional."""
    get_usd_per_1000: Price = 0.0004
    """Price of 1,000 GETs, whole or ranged, or HEADs."""
    list_usd_per_1000: Price = 0.005
    """Price of 1,000 pages of listings."""
    delete_usd_per_1000: Price = 0.0
    """Price of 1,000 deletions."""

    def __post_init__(self) -> None:
        check_fields(self, "prices.")

    def usd(self, requests: Mapping[str, int]) -> float:
        """The price of these requests, in USD."""
        return sum(count * self._usd_of_one(method) for method, count in requests.items())

    def put_usd(self, requests: Mapping[str, int]) -> float:
        """The price of the PUTs among them, in USD."""
        return sum(requests.get(method, 0) * self._usd_of_one(method) for method in PUTS)

    def _usd_of_one(self, method: str) -> float:
        match method:
            case "put" | "put_if_absent":
                return self.put_usd_per_1000 / 1000
            case "get" | "get_range" | "head":
                return self.get_usd_per_1000 / 1000
            case "list":
                return self.list_usd_per_1000 / 1000
            case "delete" | "delete_many":
                return self.delete_usd_per_1000 / 1000
            case _:
                return 0.0


def _is_endpoint(url: str, parts_max: int = 0) -> bool:
    try:
        parts: SplitResult = urlsplit(url)
        _ = parts.port  # raises if it is no number
    except ValueError:
        return False
    path = parts.path.strip("/")
    plain = (
        not (parts.query or parts.fragment or "@" in parts.netloc) and len(path.split("/")) - (not path) <= parts_max
    )
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain


def _is_base64(text: str | None) -> bool:
    """Also for a secret that a pickle left behind."""
    try:
        return text is None or bool(base64.b64decode(text, validate=True))
    except ValueError:
        return False
