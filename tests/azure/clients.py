"""Settings for a job in a container."""

from typing import Any

from benchmarks.azurite import Azurite
from statebackend import Settings
from statebackend.settings import MiB, Secret
from tests.knobs import settings_with


def settings_for(server: Azurite, container: str, *, prefix: str, **changes: Any) -> Settings:
    """A job in `container`, with the smallest blocks, and without the persist delay."""
    values: dict[str, Any] = {
        "job": "fleet",
        "primary": f"azure://{server.account}/{container}/{prefix}",
        "azure__endpoint": server.endpoint,
        "azure__account_key": Secret(server.account_key),
        "azure__block_bytes": MiB,
        "azure__block_threshold_bytes": MiB,
        "persist_delay_s": 0.0,
    }
    return settings_with(**{**values, **changes})
