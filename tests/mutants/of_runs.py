"""Mutants for tables over runs: a machine against dictionaries, files that are damaged, and lives of jobs."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from tests.mutants.planting import Mutant

_Over = partial(Mutant, tries=300, hunter="runs")
_Lives = partial(Mutant, tries=30, hunter="lives")

OF_RUNS: Final[Sequence[Mutant]] = (
    # --------------------------------------------------------------------------------- no page is believed unverified
    _Over(
        "a page is believed unverified",
        "statebackend._runs.run_file",
        "if zlib.crc32(view[number * size : (number + 1) * size]) != self.tail.checksums[page]:",
        "if False:",
        "assert_damage_is_refused",
    ),
    _Over(
        "a page that is copied from a mapped file is believed unverified",
        "statebackend._runs.page_reader",
        "            if zlib.crc32(view[number * page_bytes : (number + 1) * page_bytes]) != checksum:",
        "            if False:",
        "assert_damage_is_refused",
    ),
    _Over(
        "the checksums of pages are believed unverified",
        "statebackend._runs.run_file",
        "        if self._checksum() != segment.checksum:",
        "        if False:",
        "assert_damage_is_refused",
    ),
    _Over(
        "a page from afar is believed unverified",
        "statebackend._runs.far_pages",
        "if len(page) < size or zlib.crc32(page.data) != wanted.checksums[number]:",
        "if False:",
        "assert_damage_is_refused",
    ),
    _Over(
        "a page from afar that is damaged twice is believed",
        "statebackend._runs.far_pages",
        "if bad and (still := _read(bad)):",
        "if bad and not (still := _read(bad)):",
        "assert_damage_is_refused",
    ),
    _Over(
        "pages from afar are put where others are wanted",
        "statebackend._runs.far_pages",
        "        for number, begin in zip(range(self.first, self.end), begins.tolist(), strict=True):",
        "        for number, begin in zip(range(self.end - self.first), begins.tolist(), strict=True):",
        "assert_ranges_are_the_file",
    ),
    _Over(
        "the end of a request is cut off",
        "statebackend._runs.far_pages",
        "        end = int(self.wanted.offsets[self.end - 1]) + self.wanted.page_bytes\n",
        "        end = int(self.wanted.offsets[self.end - 1])\n",
        "assert_ranges_are_the_file",
    ),
    # ------------------------------------------------------------------------------------ no key is lost between layers
    _Over(
        "of two layers only the newer rows are merged",
        "statebackend._runs.merged_streams",
        "    if (hidden := int(np.count_nonzero(is_hidden))) == older.records:",
        "    if True:",
        "assert_layers_are_the_model",
    ),
    _Over(
        "rows of two layers are merged in no order",
        "statebackend._runs.merged_streams",
        "    places = places_in_order(orders_of(hashes, groups), hashes)\n    is_hidden",
        "    places = np.arange(len(hashes))\n    is_hidden",
        "assert_layers_are_the_model",
    ),
    _Over(
        "the oldest row of a key counts",
        "statebackend._runs.layers",
        "        maps = [each for each in reversed(self.maps) if each.parts]",
        "        maps = [each for each in self.maps if each.parts]",
        "assert_the_newest_row_is_found",
    ),
    _Over(
        "what a page has not is asked of the bits of others",
        "statebackend._runs.page_filters",
        "first, rows = self._first_octets(pages[known]), self",
        "first, rows = self._first_octets(pages[known] - 1), self",
        "assert_layers_are_the_model",
    ),
    _Over(
        "rows leave the memory before a run has them",
        "statebackend._runs.run_table",
        " & ~self._is_touched[:used] & (self._changed_at[:used] <= self._runs_epoch)",
        " & ~self._is_touched[:used]",
        "assert_layers_are_the_model",
    ),
    _Over(
        "what changes while a layer is written counts as in it",
        "statebackend._runs.run_table",
        "        self._runs_epoch = max(self._runs_epoch, epoch)\n",
        "        self._runs_epoch = max(self._runs_epoch, epoch + 1)\n",
        "assert_layers_are_the_model",
    ),
    _Over(
        "a layer has the rows of the last batch alone",
        "statebackend._runs.run_table",
        "& (self._changed_at[:used] > self._runs_epoch))",
        "& (self._changed_at[:used] > max(self._runs_epoch, self.epoch - 1)))",
        "assert_layers_are_the_model",
    ),
    _Over(
        "a key that is back in a newer layer stays gone",
        "statebackend._runs.gone_keys",
        "        self.forget(live[is_back])",
        "",
        "assert_stored_is_the_model",
    ),
    _Over(
        "of two parts of a key that are of one type only the last is stored",
        "statebackend._codec.pages",
        "        self._constant, self._row = constant, row\n",
        "        self._constant, self._row = constant, row\n"
        "        self._at = [dict(zip(self.arrays, self._at, strict=True))[each] for each in self.arrays]\n",
        "assert_layers_are_the_model",
    ),
    # ------------------------------------------------------------------------------------- no drop is forgotten early
    _Over(
        "a drop is forgotten once a layer has it",
        "statebackend._runs.run_table",
        "        takes_in_none = layer >= len(self._runs.maps)\n",
        "        takes_in_none = layer >= len(self._runs.maps)\n        self._gone.forget_until(copied.epoch)\n",
        "assert_layers_are_the_model",
    ),
    _Over(
        "a layer that takes in others has the new drops alone",
        "statebackend._runs.run_table",
        "since = self._runs_epoch if layer >= len(self._runs.maps) else None",
        "since = self._runs_epoch",
        "assert_stored_is_the_model",
    ),
    _Over(
        "a key that is dropped while a layer is written is not remembered",
        "statebackend._runs.run_table",
        "        left = rows if self._is_copied else rows[self._origins[rows] != IN_NO_RUN]",
        "        left = rows[self._origins[rows] != IN_NO_RUN]",
        "assert_layers_are_the_model",
    ),
    _Over(
        "what is gone is merged into a base",
        "statebackend._runs.merged_runs",
        "            is_over[perhaps] = self._gone.find(keys, hashes[perhaps]) >= 0",
        "            is_over[perhaps] = False",
        "assert_layers_are_the_model",
    ),
    # ---------------------------------------------------------------- tables of whole jobs, and of their ranges
    _Lives(
        "runs that an attempt has made are taken over though the commit lists others",
        "statebackend._ranges.cached_in_process",
        "        if listed == self.runs.made and self.runs.take_over is not None:",
        "        if self.runs.take_over is not None:",
        "assert_looks_up_in_what_is_committed",
    ),
    _Lives(
        "of a state that outgrows its memory only key groups that have changed move to runs",
        "statebackend._checkpoint.materialization.base_writer",
        "            changed = self._states.key_groups\n",
        "            changed = self._changed\n",
        "assert_rows_are_the_model",
    ),
)
