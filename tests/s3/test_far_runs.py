"""State over runs in a bucket: by ranged GETs."""

from tests.cloud.far_runs import AnyFarRuns


class TestS3FarRuns(AnyFarRuns):
    """Over a bucket."""
