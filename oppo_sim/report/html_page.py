"""Chapters as one HTML file that loads nothing: style, script, pictures and data lie inside, and a content
policy forbids the rest.

Every text is escaped by the template engine; only pictures drawn here are markup. The policy admits the
page's own script by its hash, so a script that came in with some name would not run even if it were not
escaped.
"""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any, Final

from oppo_sim.report.html_parts import Chapter
from oppo_sim.report.plain_json import plain

_PAGE: Final = "page"
_DANGEROUS: Final = {
    ord("<"): "\\u003c",
    ord(">"): "\\u003e",
    ord("&"): "\\u0026",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def page_html(title: str, chapters: Sequence[Chapter]) -> str:
    """The whole document. The same chapters give the same text."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["plain_json"] = lambda value: Markup(_script_safe_json(value))
    script = _asset("report.js")
    return (
        environment.from_string(_asset("report.html.j2")).render(
            title=title,
            chapters=chapters,
            policy=Markup(content_policy(script)),
            version=version("oppo-toolkit"),
            style=Markup(_asset("report.css")),
            script=Markup(script),
        )
        + "\n"
    )


def content_policy(script: str) -> str:
    """The page's Content-Security-Policy: its own script, inline styles, embedded images, and no request at
    all."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:;"
        " base-uri 'none'; form-action 'none'"
    )


# ---- inside ------------------------------------------------------------------------------------------------


def _script_safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(
        _DANGEROUS
    )


@cache
def _asset(name: str) -> str:
    return (files("oppo_sim.report") / _PAGE / name).read_text(encoding="utf-8")
