"""Settings: frozen records that check themselves, each value alone and in relation to the others, when they are made.

`Settings` is the whole; `S3Settings`, `AzureSettings`, `UploadSettings` and `Prices` are records inside it. Units are
in the names. They come from keyword arguments, or from a mapping, TOML, the environment or a Spark configuration.
"""

from statebackend.settings.credentials import AzureCredentials, CredentialSource, S3Credentials, Secret
from statebackend.settings.records import (
    AzureSettings,
    GiB,
    KiB,
    MiB,
    Prices,
    S3Addressing,
    S3Settings,
    UploadSettings,
)
from statebackend.settings.settings import (
    Compression,
    Settings,
    TableKind,
    check_primary,
)
from statebackend.settings.sources import ENVIRONMENT_PREFIX, SPARK_PREFIX

__all__ = [
    "ENVIRONMENT_PREFIX",
    "SPARK_PREFIX",
    "AzureCredentials",
    "AzureSettings",
    "Compression",
    "CredentialSource",
    "GiB",
    "KiB",
    "MiB",
    "Prices",
    "S3Addressing",
    "S3Credentials",
    "S3Settings",
    "Secret",
    "Settings",
    "TableKind",
    "UploadSettings",
    "check_primary",
]
