"""A switch between the sites of several releases, which lie side by side in folders that are named by their version.

The list is `versions.json`, beside these folders. Each build leaves one in its own folder, of this release and of those
that are tagged behind it: copy that of the newest to the folder above. Read from a disk, or where there is no list, a
site shows its own version alone.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

LIST = "versions.json"


def releases(root: Path) -> list[str]:
    """The versions that are tagged behind HEAD, newest first; none without a history."""
    command = ["git", "tag", "--merged", "HEAD", "--sort=-version:refname"]
    try:
        tags = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.split()  # noqa: S603  # written here
    except (OSError, subprocess.CalledProcessError):
        return []
    return [tag.removeprefix("v") for tag in tags if re.fullmatch(r"v?\d+(\.\d+)+", tag)]


def _write_list(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        known = dict.fromkeys([app.config.release, *releases(Path(app.confdir))])
        (Path(app.outdir) / LIST).write_text(json.dumps(list(known)), encoding="utf-8")


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.add_js_file("versions.js", loading_method="defer")
    app.connect("build-finished", _write_list)
    return {"parallel_read_safe": True}
