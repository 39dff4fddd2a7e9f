"""Code on a page is code that runs."""

from pathlib import Path

import pytest

from tests.howto.pages import PAGES, code_of

HERE = Path(__file__).parent


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda page: page.stem)
def test_every_page_with_code_is_run(page: Path) -> None:
    """By a module of its name beside this one."""
    if code_of(page.read_text(encoding="utf-8")).strip():
        assert (HERE / f"test_{page.stem.replace('-', '_')}.py").exists()


def test_blocks_keep_their_lines_and_nothing_else_is_taken() -> None:
    """Prose, other languages and the fences themselves become empty lines."""
    text = "prose\n```python\na = 1\n```\n```\nnot = 2\n```\n```sh\nrun\n```\n```python\nb = 3\n```\n"
    assert code_of(text).splitlines() == ["", "", "a = 1", *[""] * 8, "b = 3", ""]
