"""The target that a text names."""

from statebackend._mirroring.target import MirrorTarget
from statebackend._mirroring.targets.parquet import ParquetTarget


def target_at(text: str) -> MirrorTarget:
    """The target of `Mirror(to=...)`: see there. Raises `InputError`."""
    if text.startswith(("postgresql://", "postgres://")):
        from statebackend._mirroring.targets.postgres import PostgresTarget  # noqa: PLC0415  # an extra

        return PostgresTarget.of_url(text)
    if text.startswith("delta:"):
        from statebackend._mirroring.targets.delta import DeltaTarget  # noqa: PLC0415  # an extra

        return DeltaTarget(text.removeprefix("delta:"))
    return ParquetTarget(text)
