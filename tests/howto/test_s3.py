"""`docs/how-to/s3.md`: what it tells to write is what the settings understand."""

from pathlib import Path

from statebackend import Settings
from tests.howto.pages import PAGES


def test_the_settings_on_the_page_are_settings(tmp_path: Path) -> None:
    """Of the first block, and the names in the text."""
    page = (PAGES / "s3.md").read_text(encoding="utf-8")
    block = page.split("```toml\n", 1)[1].split("```", 1)[0]
    (tmp_path / "statebackend.toml").write_text(block, encoding="utf-8")
    settings = Settings.from_toml(tmp_path / "statebackend.toml")
    assert settings.primary.startswith("s3://")
    named = {name.split(" ")[0] for name in page.split("`")[1::2] if name.startswith("s3_")}
    assert named <= set(Settings.__struct_fields__)
