"""A report's page, taken apart."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "img", "br", "input", "path", "use", "rect"}
HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror=window.hacked=1>"


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    text: str = ""


@dataclass
class Page:
    elements: list[Element] = field(default_factory=list)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [
            one
            for one in self.elements
            if one.tag == tag and all(one.attributes.get(name) == value for name, value in wanted.items())
        ]

    def text(self, tag: str, **attributes: str) -> list[str]:
        return [" ".join(one.text.split()) for one in self.all(tag, **attributes)]

    @property
    def data(self) -> list[dict[str, Any]]:
        """What the scripts of the page read."""
        return [json.loads(one.text) for one in self.all("script", type="application/json")]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()
        self.open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.page.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.page.elements.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open
        assert self.open[-1].tag == tag, f"<{self.open[-1].tag}> is closed by </{tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


def parse(html: str) -> Page:
    parser = _Parser()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser.page


def check_page(html: str) -> Page:
    """What holds for every report: it is closed in itself, loads nothing, and says everything to those who do
    not see it."""
    page = parse(html)
    scripts = [one for one in page.all("script") if one.attributes.get("type") is None]
    assert len(scripts) == 1
    (policy,) = (
        one.attributes["content"]
        for one in page.all("meta")
        if one.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    for one in page.elements:
        for name, value in one.attributes.items():
            assert not name.startswith("on"), f"<{one.tag}> has a handler"
            if name in ("src", "href", "xlink:href", "action", "srcset", "poster", "data"):
                assert value is not None
                assert value.startswith(("#", "data:")), f"<{one.tag} {name}> leads to {value[:60]}"
            if "url(" in (value or ""):
                assert (value or "").count("url(") == (value or "").count("url(#")
    assert "@import" not in html
    ids = [one.attributes["id"] for one in page.elements if "id" in one.attributes]
    assert len(ids) == len(set(ids)), sorted(name for name in set(ids) if ids.count(name) > 1)[:5]
    targets = {f"#{name}" for name in ids}
    for one in page.elements:
        for name in ("href", "xlink:href"):
            value = one.attributes.get(name) or ""
            assert not value.startswith("#") or value in targets, value
    assert all(one.attributes.get("alt") for one in page.all("img"))
    drawn = page.all("div", class_="drawn")
    assert all(one.attributes.get("role") == "img" and one.attributes.get("aria-label") for one in drawn)
    assert all(one.attributes.get("scope") in ("col", "row") for one in page.all("th"))
    assert len(page.all("caption")) == len(page.all("table"))
    assert page.all("html")[0].attributes["lang"] == "en"
    assert len(page.all("h1")) == 1
    return page
