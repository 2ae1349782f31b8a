"""Pictures of what a user sees, to be looked at: tables at three widths of a terminal, reports of what
the commands wrote, and the site, on a desk and on a phone.

    python -m experiments.screenshots FOLDER [--site SITE] [NAME…]

Needs chromium. Every command is run in a folder of its own and goes on there at the next width; ``--site``
names the folder of `python -m sphinx -W docs SITE`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS: Final = (80, 100, 140)
_FEW: Final = ("--seeds", "2", "--steps", "30", "--draws", "8", "--no-figures")
_SPLITS: Final = ",".join(f"rollout:{n}xTP1 scoring:cpu training:{8 - n}" for n in (1, 2, 4))
COMMANDS: Final = {
    "simulate": ("simulate", "h200-single", "--policy", "oppo", "--steps", "30", "--draws", "20", "--force"),
    "compare": ("compare", "paper-stackexchange-7b", *_FEW, "--force"),
    "sweep": ("sweep", "h200-single", "--grid", "policy.chunk_size=128,256,512",
              "--grid", "policy.overcommit=0:32:+16", *_FEW),
    "sweep-splits": (
        "sweep", "grpo-h200x8", "--set", "policy={name: async}", "--grid", f"cluster.split={_SPLITS}",
        "--grid", "rollout.enable_prefix_caching=true,false", *_FEW,
    ),
    "tune": ("tune", "h200-single", "--trace", "rl_reinforcepp_logic_qwen3b", "--trials", "24",
             "--fresh-seeds", "3", *_FEW[:-1]),
    "fit": ("fit", "train.log.gz", "--scenario", "scenario.yaml", "--fit-steps", "15", "--force"),
}  # fmt: skip
SIZES: Final = {"desk": (1280, 1600), "phone": (390, 1600)}
PAGES: Final = ("index", "tutorial", "howto/shared-prompts", "limits", "columns")


def photograph(address: Path, picture: Path, width: int, height: int) -> None:
    """A PNG of a file as a browser shows it."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size={width},{height}", f"--screenshot={picture}", address.resolve().as_uri()]
    subprocess.run(command, check=True, capture_output=True)
    print(picture, flush=True)


def table(name: str, home: Path, folder: Path) -> None:
    """What a command prints, at each width."""
    if name == "fit":
        for file in ("train.log.gz", "scenario.yaml"):
            shutil.copy(Path(__file__).parent / "fit" / file, home)
    for columns in COLUMNS:
        done = subprocess.run(
            [sys.executable, "-m", "oppo_sim", *COMMANDS[name], "-o", "out", "--quiet"],
            cwd=home,
            env={**os.environ, "COLUMNS": str(columns), "FORCE_COLOR": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        printed = done.stdout + done.stderr
        (folder / f"{name}-{columns}.txt").write_text(Text.from_ansi(printed).plain, encoding="utf-8")
        console = Console(record=True, width=columns, file=open(os.devnull, "w"), legacy_windows=False)  # noqa: SIM115
        console.print(Text.from_ansi(printed))
        drawing = folder / f"{name}-{columns}.svg"
        text = console.export_svg(title=f"{columns} columns", theme=MONOKAI)
        drawing.write_text(text, encoding="utf-8")
        width, height = map(float, text.partition('viewBox="0 0 ')[2].partition('"')[0].split())
        photograph(drawing, drawing.with_suffix(".png"), int(width), int(height) + 100)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *COMMANDS, "report"])
    parser.add_argument("--site", type=Path)
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    names = asked.names or [*COMMANDS, "report"]
    home = Path(tempfile.mkdtemp(prefix="screens-"))
    for name in names:
        (home / name).mkdir()
        if name != "report":
            table(name, home / name, asked.folder)
    for name in names if "report" in names else ():
        if not (home / name / "out").is_dir():
            continue
        page = home / f"{name}.html"
        command = [sys.executable, "-m", "oppo_sim", "report", str(home / name / "out"), "-o", str(page)]
        subprocess.run(command, check=True, capture_output=True)
        for size, (width, height) in SIZES.items():
            photograph(page, asked.folder / f"report-{name}-{size}.png", width, 4 * height)
    for page_name in PAGES if asked.site else ():
        for size, (width, height) in SIZES.items():
            picture = asked.folder / f"site-{page_name.replace('/', '-')}-{size}.png"
            photograph(asked.site / f"{page_name}.html", picture, width, height)
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
