"""A sink is picklable, as Spark Connect wants it: its settings travel, its state does not."""

import pickle

import pytest
from pyspark import cloudpickle

from statebackend.errors import SettingsError
from statebackend.settings import Settings
from tests.examples import name_of


def count_rows(df, batch_id, backend) -> None:
    """A function that can be pickled by name."""
    counts = backend.value_state("counts", int)
    for row in df.collect():
        counts[row.key] = counts.get(row.key, 0) + 1


@pytest.mark.parametrize("codec", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_a_sink_travels_before_and_after_its_use(stream, open_sink, read, codec) -> None:
    """With its arguments, without what is open: it starts afresh where it arrives, from what is committed."""
    sink = codec.loads(codec.dumps(open_sink(count_rows, stream.settings, on_rewind="rollback", query_id="mine")))
    stream.feed("a")
    with sink:
        stream.run(sink)
        stream.feed("a")
        with codec.loads(codec.dumps(sink)) as arrived:
            stream.run(arrived)
            assert read(stream.settings).counts == {"a": 2}
            assert read(stream.settings).queries == {"mine"}
        stream.feed("b")
        stream.run(sink)
    assert read(stream.settings).counts == {"a": 2, "b": 1}


@pytest.mark.parametrize("options", [{"function": None}, {"on_rewind": "panic"}], ids=name_of)
def test_arguments_that_make_no_sense_are_refused_at_once(open_sink, options) -> None:
    """Where they are written, and not in the first batch."""
    with pytest.raises(SettingsError):
        open_sink(**{"function": count_rows, "settings": Settings(job="j", primary="memory://m"), **options})
