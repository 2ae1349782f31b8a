"""Where files lie that are made once and kept: compiled code, tables."""

import os
import tempfile
from pathlib import Path


def cache_root() -> Path:
    """``OPPO_CACHE_DIR``, else a folder of the user's cache; where that cannot be written, one of the
    temporary folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    wanted = Path(os.environ.get("OPPO_CACHE_DIR") or Path(home) / "oppo")
    for root in (wanted, Path(tempfile.gettempdir()) / f"oppo-cache-{os.getuid()}"):
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=root):
                return root
        except OSError:
            continue
    return wanted
