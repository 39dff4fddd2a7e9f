"""The target that a text names."""

from statebackend._mirroring.target import MirrorTarget
from statebackend._mirroring.targets.parquet import ParquetTarget


def target_at(text: str) -> MirrorTarget:
    """The target of `Mirror(to=...)`: see there. Raises `InputError`."""
    return ParquetTarget(text)
