"""The documentation site: ``python -m sphinx -W docs site``. Every link must lead somewhere.

The pages are those that are read in the repository; beside them stand the result pages of ``experiments/``,
the commands and the Python functions.
"""

import re
import shutil
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx

HERE = Path(__file__).resolve().parent
EXPERIMENTS = HERE.parent / "experiments"
COPIED = HERE / "experiments"
"""Result pages, as they stand at the time of the build."""

project = "OPPO toolkit"
author = "the OPPO toolkit's authors"
version = release = installed_version("oppo-toolkit")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
# Headings are link targets down to this level, as where the repository is browsed.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
# Blocks of commands are highlighted as such only where they say so; result pages begin at any level.
suppress_warnings = ["misc.highlighting_failure", "myst.header"]

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True

html_theme = "pydata_sphinx_theme"
html_title = "OPPO toolkit"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
# All pages at the side: the theme's own list has only what lies below a page, and most have nothing.
html_sidebars = {"**": ["globaltoc.html"]}
html_theme_options = {
    "navbar_center": [],
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
}


def copy_result_pages(app: Sphinx) -> None:
    """Pages and figures of ``experiments/`` under this folder, where a site can hold them: every README and
    what it links to."""
    shutil.rmtree(COPIED, ignore_errors=True)
    wanted, copied = sorted(EXPERIMENTS.rglob("README.md")), set()
    while wanted:
        file = wanted.pop()
        if file in copied or not file.is_file() or EXPERIMENTS not in file.parents:
            continue
        copied.add(file)
        there = COPIED / file.relative_to(EXPERIMENTS)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, there)
        if file.suffix == ".md":
            links = re.findall(r"\]\(([^)#]+)", file.read_text("utf-8"))
            wanted += [(file.parent / link).resolve() for link in links if "://" not in link]


def link_to_copies(app: Sphinx, name: str, source: list[str]) -> None:
    """A page says ``../experiments/…`` or, from there, ``../../docs/…``: the copies lie elsewhere. A notebook
    is no page: its list is."""
    text = re.sub(
        r"\]\((\.\./)*\.\./experiments/", lambda found: f"]({found[1] or ''}experiments/", source[0]
    )
    if name.startswith("experiments/"):
        text = re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", text)
        text = re.sub(r"\]\(((?:\.\./)+)notebooks/[^)]+\)", r"](\1api.md#notebooks)", text)
    source[0] = text


def keep_stars(app: Sphinx, context: object, lines: list[str]) -> None:
    """Help texts are plain: ``64:1024:*2`` is no emphasis."""
    lines[:] = [re.sub(r"([*|`_])(?=\S)", r"\\\1", line) for line in lines]


def setup(app: Sphinx) -> None:
    """What Sphinx calls."""
    for part in ("description", "epilog"):
        app.connect(f"sphinx-click-process-{part}", keep_stars)
    app.connect("builder-inited", copy_result_pages)
    app.connect("source-read", link_to_copies)
