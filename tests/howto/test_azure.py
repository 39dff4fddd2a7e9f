"""`docs/how-to/azure.md`: its settings are settings, and its program runs, on a server on this machine."""

from pathlib import Path

import pytest

from statebackend import Settings
from tests.howto.pages import PAGES, load_page

pytest.importorskip("azure.storage.blob", reason="no extra `azure`")

from tests.azure.conftest import container, server, settings  # noqa: F401 - fixtures


def test_the_settings_on_the_page_are_settings(tmp_path: Path) -> None:
    """Of the first block, and the names in the text."""
    page = (PAGES / "azure.md").read_text(encoding="utf-8")
    (tmp_path / "statebackend.toml").write_text(page.split("```toml\n", 1)[1].split("```", 1)[0], encoding="utf-8")
    found = Settings.from_toml(tmp_path / "statebackend.toml")
    assert found.primary.startswith("azure://")
    named = {name.split(" ")[0].removeprefix("azure.") for name in page.split("`")[1::2] if name.startswith("azure.")}
    assert {"endpoint", "account_key"} <= named <= set(found.azure.__struct_fields__)


async def test_the_program_on_the_page_goes_on_from_its_last_run(settings: Settings) -> None:  # noqa: F811
    """Which nothing but the container has."""
    page = load_page("azure")
    assert await page.count(settings, ["N14228", "N24211", "N14228"]) == {"N14228": 2, "N24211": 1}
    assert await page.count(settings, ["N24211"]) == {"N14228": 2, "N24211": 2}
