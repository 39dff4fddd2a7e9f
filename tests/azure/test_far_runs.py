"""State over runs in a container: by ranged reads of its blobs."""

from tests.cloud.far_runs import AnyFarRuns


class TestAzureFarRuns(AnyFarRuns):
    """Over a container."""
