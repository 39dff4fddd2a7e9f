"""`erase`: its output and its exit status."""

import json

from statebackend import cli
from tests.cli.conftest import Place
from tests.cli.test_page import Reader


def test_it_says_what_it_has_done_and_proves_it(place: Place) -> None:
    """Until a sweep has come, `--verify` names what still has the key, and ends with status 1."""
    key = json.loads(place.run("dump", "--limit", "1")[1].splitlines()[0])["key"]
    assert place.run("erase", key)[0] == cli.WRONG_CALL  # savepoints have it
    status, printed = place.run("erase", key, "--savepoints", "drop")
    assert status == cli.OK
    assert "was dropped" in printed
    assert "checkpoint 14 is without them" in printed
    assert "until a sweep after" in printed
    status, printed = place.run("erase", key, "--verify")
    assert (status, "may have the keys" in printed) == (cli.DAMAGE, True)
    assert place.run("get", "legs", key)[0] == cli.DAMAGE
    assert "nothing to do" in place.run("erase", key)[1]


def test_a_dry_run_says_so_and_json_is_for_programs(place: Place) -> None:
    """Neither writes anything."""
    key = json.loads(place.run("dump", "--limit", "1")[1].splitlines()[0])["key"]
    status, printed = place.run("erase", key, "--savepoints", "drop", "--dry-run", "--json")
    found = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    assert (status, found["checkpoint_id"], found["keys"]) == (cli.OK, None, 1)
    assert "dry run" in place.run("erase", key, "--savepoints", "drop", "--dry-run")[1]


def test_a_key_that_nobody_has_is_a_wrong_call_and_proved(place: Place) -> None:
    """There is nothing to erase, and `--verify` says that nothing has it."""
    assert place.run("erase", "Nobody")[0] == cli.WRONG_CALL
    status, printed = place.run("erase", "Nobody", "--verify")
    assert (status, "none has the keys" in printed) == (cli.OK, True)


def test_an_auditor_gets_a_page_of_each(place: Place) -> None:
    """What was done, and what proves it: neither has the key on it."""
    key = json.loads(place.run("dump", "--limit", "1")[1].splitlines()[0])["key"]
    done, proof = place.directory / "erased.html", place.directory / "proof.html"
    assert place.run("erase", key, "--savepoints", "drop", "--html", str(done))[0] == cli.OK
    assert place.run("erase", key, "--verify", "--html", str(proof))[0] == cli.DAMAGE
    for path, said in ((done, "checkpoint 14 is without them"), (proof, "may have the keys")):
        reader = Reader()
        reader.feed(path.read_text(encoding="utf-8"))
        assert reader.open == []
        assert said in reader.text
        assert "segments/" in reader.text
        assert "a sweep may delete it from" in reader.text
