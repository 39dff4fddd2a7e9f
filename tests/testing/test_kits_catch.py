"""The kits find what they are there for: for each way of breaking a contract there is a test that fails by it."""

import pytest

from tests.testing import wrong_stores as stores
from tests.testing import wrong_uploaders as uploaders
from tests.testing.kits import failures_of, names_of

RIGHT_UPLOADER = uploaders.kit_of(uploaders.Patient, patience_s=5)
RIGHT_STORE = stores.kit_of(stores.OpensApart)

RESTORE_READS = "test_what_a_restore_reads_is_the_segment"
ONE_BODY = "test_attempts_at_one_body_do_not_share_an_object"
MANY = "test_many_uploads_at_once_do_not_get_in_each_others_way"
RETURNS_EARLY = "test_an_upload_does_not_return_before_its_object_is_stored"
LATE = "test_any_place_may_be_late"
ONE_FAILS = "test_any_one_request_may_fail"
ALL_FAIL = "test_an_upload_that_no_place_answers_raises_an_os_error"
BUG = "test_an_upload_never_returns_what_could_not_be_stored"
HANGS = "test_a_cancelled_upload_ends_while_its_places_hang"
CANCELLED = "test_an_upload_may_be_cancelled_at_any_moment"
REMOVAL_FAILS = "test_a_removal_that_fails_does_not_hide_why_the_upload_failed"
REMOVAL_HANGS = "test_a_removal_that_hangs_is_given_up"
DISCARD = "test_discard_removes_every_copy_and_nothing_else"
DISCARD_TWICE = "test_discard_may_be_repeated"
DISCARD_CANCELLED = "test_what_a_cancelled_discard_left_the_next_one_removes"
DISCARD_FAILED = "test_what_a_failed_discard_left_the_next_one_removes"

UPLOADERS: dict[type, set[str]] = {
    uploaders.AcknowledgesEarly: {RETURNS_EARLY, LATE},
    uploaders.AcknowledgesThePrimaryEarly: {LATE},
    uploaders.ReturnsAtTheFirstCopy: {LATE, ALL_FAIL},
    uploaders.DropsAllButTheFirstChunk: {RESTORE_READS, "test_a_part_can_be_read_by_itself"},
    uploaders.CutsTheEnd: {RESTORE_READS},
    uploaders.WrongChecksum: {RESTORE_READS},
    uploaders.WrongLength: {RESTORE_READS},
    uploaders.AddsAHeader: {RESTORE_READS},
    uploaders.SpoilsTheBody: {"test_the_body_stays_as_it_was"},
    uploaders.OneAtATimeByMistake: {MANY},
    uploaders.NamesByContent: {ONE_BODY},
    uploaders.OneNameForAll: {ONE_BODY, MANY},
    uploaders.SaysThatACopyWasDroppedAndKeepsIt: {RESTORE_READS},
    uploaders.GivesNoReasonForADroppedCopy: {ONE_FAILS},
    uploaders.ClaimsALocalCopy: {ONE_FAILS},
    uploaders.ClaimsALocalCopyTooEarly: {LATE},
    uploaders.NeverKeepsALocalCopy: {RESTORE_READS},
    uploaders.LocalCopyElsewhere: {RESTORE_READS},
    uploaders.DiscardsNothing: {DISCARD, DISCARD_FAILED},
    uploaders.DiscardForgetsTheLocalCopy: {DISCARD},
    uploaders.DiscardsByPrefix: {DISCARD, DISCARD_TWICE},
    uploaders.DiscardsOnce: {DISCARD_TWICE},
    uploaders.DiscardGivesUpHalfWay: {DISCARD_CANCELLED},
    uploaders.LeavesWhatFailed: {ALL_FAIL, CANCELLED},
    uploaders.LeavesTheLocalCopyOfWhatFailed: {HANGS, CANCELLED},
    uploaders.CleansUpUnshielded: {HANGS, CANCELLED},
    uploaders.CleansUpForEver: {REMOVAL_HANGS},
    uploaders.RaisesTheRemovalsError: {REMOVAL_FAILS},
    uploaders.RaisesAGroup: {ALL_FAIL},
    uploaders.RaisesItsOwnError: {ALL_FAIL},
    uploaders.SwallowsErrors: {ALL_FAIL, BUG},
    uploaders.SwallowsCancellation: {HANGS, CANCELLED},
    uploaders.IgnoresCancellation: {HANGS},
    uploaders.StaysLockedAfterAFailure: {ALL_FAIL, CANCELLED},
    uploaders.NoUploader: {"test_is_an_uploader"},
}

WHOLE = "test_a_cancelled_put_leaves_a_whole_object_or_none"
CREATED_WHOLE = "test_a_cancelled_put_if_absent_leaves_a_whole_object_or_none"
REPLACED = "test_a_reader_sees_one_whole_object_while_it_is_replaced"
RANGE = "test_returns_a_range_or_what_there_is_of_it"
MISSING = "test_reading_a_missing_object_is_its_own_error"
HEAD = "test_head_tells_the_size_and_none_for_a_missing_object"
DELETE = "test_delete_removes_and_can_be_repeated"
KEYS = "test_keeps_odd_keys_apart"
EVERY_KEY = "test_takes_every_legal_key"
ORDER = "test_lists_what_starts_with_a_prefix_in_key_order"
LISTING = "test_a_listing_may_be_left_early_and_outlives_changes"
WINNER = "test_put_if_absent_has_exactly_one_winner"
FIRST = "test_put_if_absent_creates_once_and_leaves_the_first"
OTHERS = "test_others_find_at_once_what_was_acknowledged"
LATER = "test_a_cancelled_call_has_no_effect_after_it_has_returned"
MEMORY = "test_reads_remember_nothing"
MEMORY_OF_OTHERS = "test_reads_remember_nothing_that_others_change"
WHEN = "test_tells_when_an_object_was_stored"
BLOCKS = "test_does_not_block_the_loop"
APART = "test_what_was_put_is_there_apart"
MANY_APART = "test_many_ranges_are_read_apart_at_once"
OUTLIVES = "test_a_store_outlives_what_was_opened_apart"

STORES: dict[type, set[str]] = {
    stores.ClaimsMore: {"test_has_the_declared_capabilities"},
    stores.AcknowledgesEarly: {"test_returns_the_bytes_that_were_put", OTHERS},
    stores.KeepsTheCallersBuffers: {"test_keeps_bytes_the_caller_changes_afterwards"},
    stores.CountsItemsForBytes: {"test_takes_any_kind_of_buffer"},
    stores.AppendsToWhatIsThere: {"test_put_replaces_the_whole_object"},
    stores.WritesChunkByChunk: {WHOLE, REPLACED},
    stores.DeletesBeforeItPuts: {WHOLE, REPLACED},
    stores.CopiesByReference: {"test_copies_an_object_as_a_put_would"},
    stores.RangeIncludesItsEnd: {RANGE},
    stores.RangeBeyondTheEndRaises: {RANGE},
    stores.MissingIsEmpty: {MISSING},
    stores.MissingIsAKeyError: {MISSING},
    stores.HeadRaises: {HEAD},
    stores.DeletesOnce: {DELETE},
    stores.DeletesByPrefix: {"test_delete_leaves_other_objects_alone"},
    stores.DeletesManyUntilOneIsNotThere: {"test_delete_many_removes_these_and_no_others"},
    stores.IgnoresCase: {KEYS},
    stores.UnquotesKeys: {EVERY_KEY},
    stores.ListsInAnyOrder: {ORDER},
    stores.ListsByParts: {ORDER},
    stores.ListsWholePartsOnly: {ORDER},
    stores.ListsOnePage: {"test_lists_more_than_the_place_tells_at_once"},
    stores.RefusesOddPrefixes: {"test_lists_nothing_under_a_prefix_without_objects"},
    stores.ListStumblesOverChanges: {LISTING},
    stores.Overwrites: {FIRST, WINNER},
    stores.LooksThenPuts: {WINNER},
    stores.TakesEqualForMine: {FIRST},
    stores.RemembersWhatItMade: {"test_put_if_absent_respects_an_object_that_put_made"},
    stores.MakesRoomFirst: {CREATED_WHOLE},
    stores.CachesForItself: {OTHERS},
    stores.WritesBehind: {OTHERS},
    stores.CreatesForItself: {"test_others_respect_what_put_if_absent_made"},
    stores.WritesAfterACancellation: {LATER},
    stores.CreatesAfterACancellation: {LATER},
    stores.DeletesAfterACancellation: {LATER},
    stores.TellsNoTime: {WHEN},
    stores.TellsMilliseconds: {WHEN},
    stores.ListsNoTime: {WHEN},
    stores.RemembersWhatWasNotThere: {MEMORY_OF_OTHERS},
    stores.RemembersThatItIsGone: {MEMORY, MEMORY_OF_OTHERS},
    stores.GetsWhatItLookedAt: {MEMORY},
    stores.SleepsOnTheLoop: {BLOCKS},
    stores.ReadsFilesOnTheLoop: {BLOCKS},
    stores.ConnectsOnTheLoop: {BLOCKS},
    stores.ReadsSocketsOnTheLoop: {BLOCKS},
    stores.IsApartAsItWas: {APART, OUTLIVES},
    stores.WaitsForItsOwnLoop: {APART},
    stores.HasOnePlaceForAllApart: {MANY_APART},
    stores.EndsWithWhatWasApart: {OUTLIVES},
}


@pytest.mark.parametrize(("uploader", "caught_by"), UPLOADERS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_catches_an_uploader_that_breaks_its_contract(uploader: type, caught_by: set[str]) -> None:
    """Each of these tests of the kit fails."""
    assert failures_of(uploaders.kit_of(uploader, patience_s=0.1), caught_by).keys() == caught_by


@pytest.mark.parametrize(("store", "caught_by"), STORES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_catches_a_store_that_breaks_its_contract(store: type, caught_by: set[str]) -> None:
    """Each of these tests of the kit fails."""
    assert failures_of(stores.kit_of(store), caught_by).keys() == caught_by


def test_passes_an_uploader_and_a_store_that_keep_theirs() -> None:
    """The wrong ones differ from these in one thing each: so it is that one thing by which they fail."""
    for kit in (RIGHT_UPLOADER, RIGHT_STORE):
        assert failures_of(kit, names_of(kit)) == {}


def test_every_test_of_a_kit_has_caught_something() -> None:
    """A test by which nothing wrong fails proves nothing."""
    for kit, caught in ((RIGHT_UPLOADER, UPLOADERS), (RIGHT_STORE, STORES)):
        assert names_of(kit) == set[str]().union(*caught.values())
