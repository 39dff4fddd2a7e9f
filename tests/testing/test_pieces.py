"""Seeds that are run in pieces, on one tree of the sources after the other, add up, and none counts twice."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.errors import InputError
from statebackend.testing.record import (
    PIECES_HEAD,
    SeedPiece,
    joined,
    pieces_of,
    read_record,
    record_of,
    write_record,
)
from statebackend.testing.simulation.__main__ import in_all, recorded


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


def test_runs_add_up_in_the_record_of_the_simulation(tmp_path: Path) -> None:
    """On one tree after the other; where nothing is recorded they begin."""
    path = tmp_path / "simulation.json"
    assert recorded(None) == recorded(path) == []
    for run in (SeedPiece("abc", 0, 100, 700, 0), SeedPiece("abc", 100, 50, 300, 1), SeedPiece("def", 150, 10, 80, 0)):
        write_record(path, in_all(recorded(path), run, 1.0))
    found = read_record(path)
    assert recorded(path) == [SeedPiece("abc", 0, 150, 1000, 1), SeedPiece("def", 150, 10, 80, 0)]
    assert (found.broken, found.command) == (1, "nox -s simulation -- --first 150 --seeds 10")
    assert "160 seeds on 2 trees" in found.notes[0]
