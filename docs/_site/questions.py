"""What people ask the search of the site, and the page that has to come first: `look.py` asks all of it."""

from typing import Final

QUESTIONS: Final = {
    "delete a user": "how-to/delete-a-person",
    "rename job": "how-to/runbook",
    "kubernetes": "how-to/ship",
    "move to another bucket": ("how-to/runbook", "how-to/clone"),
    "time-to-live": ("how-to/kinds-of-state", "how-to/columns", "how-to/time"),
    "timers": ("how-to/time", "how-to/kinds-of-state", "tutorials/alerts"),
    "savepoint": "how-to/savepoints",
    "go back to a savepoint": "how-to/savepoints",
    "disk full": ("how-to/runbook", "how-to/rocksdb"),
    "lost host": "how-to/runbook",
    "prometheus": "how-to/watch",
    "alert": ("how-to/watch", "tutorials/alerts"),
    "s3 credentials": "how-to/s3",
    "azure": "how-to/azure",
    "google cloud": "how-to/google",
    "duckdb": ("how-to/read-state", "tutorials/features"),
    "spark connect": "how-to/spark-connect",
    "numbers look wrong": "how-to/runbook",
    "every ten minutes": "how-to/every-ten-minutes",
    "test a processor": "how-to/test-a-processor",
    "http service": ("how-to/serve", "how-to/async-process", "tutorials/enrich"),
    "airflow": "how-to/every-ten-minutes",
    "upgrade a release": "how-to/runbook",
    "backfill": "how-to/seed",
    "FencedError": ("reference/api/errors", "reference/errors"),
}
"""A page without its ending, or several of which any may come first."""
