"""Seeds that are run in pieces, on one tree of the sources after the other, add up, and none counts twice."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.errors import InputError
from tests.proof.record import (
    PIECES_HEAD,
    SeedPiece,
    distinct_seeds,
    joined,
    pieces_of,
    read_record,
    record_of,
    write_record,
)
from tests.simulation.__main__ import in_all, recorded
from tests.simulation.coverage import NEVER, Coverage


def test_a_piece_that_goes_on_makes_the_one_before_it_longer() -> None:
    """On the same tree; on another it is a row of its own."""
    first, other = SeedPiece("abc", 0, 100, 700, 0), SeedPiece("def", 100, 50, 300, 0)
    assert joined([first, other], SeedPiece("abc", 100, 20, 130, 1)) == [SeedPiece("abc", 0, 120, 830, 1), other]
    assert joined([first], other) == [first, other]


@pytest.mark.parametrize("first", [0, 99, 50])
def test_seeds_that_were_run_on_a_tree_do_not_count_again(first: int) -> None:
    """Not even one of them."""
    with pytest.raises(InputError):
        joined([SeedPiece("abc", 0, 100, 700, 0)], SeedPiece("abc", first, 10, 70, 0))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(1, 20)), max_size=12))
def test_the_pieces_say_which_seeds_were_run(runs: list[tuple[str, int, int]]) -> None:
    """Each seed of each tree, once, whatever came when."""
    pieces, run = list[SeedPiece](), set[tuple[str, int]]()
    for tree, first, seeds in runs:
        new = {(tree, seed) for seed in range(first, first + seeds)}
        try:
            pieces = [*joined(pieces, SeedPiece(tree, first, seeds, 2 * seeds, 0))]
        except InputError:
            assert new & run
        else:
            assert not new & run
            run |= new
    assert sorted((piece.tree, seed) for piece in pieces for seed in range(piece.first, piece.end)) == sorted(run)
    assert sum(piece.commits for piece in pieces) == 2 * len(run)


def test_a_record_gives_its_pieces_back() -> None:
    """One of another kind has none."""
    row = ("abc", 0, 100, 700, 0)
    record = record_of("nox -s simulation", seconds=1.0, broken=0, head=PIECES_HEAD, table=[row])
    assert pieces_of(record) == [SeedPiece(*row)]
    assert pieces_of(record_of("nox -s models", seconds=1.0, broken=0, head=("what",), table=[("it",)])) == []


def test_a_seed_that_was_run_on_two_trees_is_one_seed() -> None:
    """Wherever the pieces overlap, and whatever order they come in."""
    pieces = [SeedPiece("def", 50, 100, 0, 0), SeedPiece("abc", 0, 100, 0, 0), SeedPiece("abc", 200, 5, 0, 0)]
    assert distinct_seeds(pieces) == distinct_seeds(pieces[::-1]) == 155


def test_runs_add_up_in_the_record_of_the_simulation(tmp_path: Path) -> None:
    """On one tree after the other; where nothing is recorded they begin. So does what has happened in them."""
    path = tmp_path / "simulation.json"
    assert recorded(None) is recorded(path) is None
    crash, night = "0.1  life0 crashes", "0.2  a night passes"
    for number, (run, trace) in enumerate(
        [
            (SeedPiece("abc", 0, 100, 700, 0), [crash]),
            (SeedPiece("abc", 100, 50, 300, 1), [crash, night]),
            (SeedPiece("def", 140, 10, 80, 0), [night]),
        ]
    ):
        coverage = Coverage()
        coverage.note(number, trace)
        write_record(path, in_all(recorded(path), run, coverage, 1.0))
    found = read_record(path)
    assert pieces_of(found) == [SeedPiece("abc", 0, 150, 1000, 1), SeedPiece("def", 140, 10, 80, 0)]
    assert (found.broken, found.command) == (1, "nox -s simulation -- --first 140 --seeds 10")
    assert "160 runs of 150 different seeds, on 2 trees of the sources" in found.notes[0]
    assert found.met == {"runs": 3, "crash": 2, "night": 2, "crash + night": 1}
    rows = {name: (count, never) for name, count, _, never in Coverage(found.met).rows()}
    assert rows["crash"][0] == 2
    assert "night" not in rows["crash"][1].split(", ")
    assert "hang" in rows["crash"][1].split(", ")
    assert rows["hang"] == (0, NEVER)
