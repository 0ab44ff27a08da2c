"""Check an HTML page without a browser: whether it is well-formed and self-contained, and its text."""

from __future__ import annotations

import base64
import itertools
import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "hr", "input", "path", "rect", "use", "col"}


class Page(HTMLParser):
    """Tags, identifiers, pictures and text of a page; `problems` lists parts that are not well-formed or external."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = html
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.images: list[dict[str, str]] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.headings: list[tuple[int, str]] = []
        self._open: list[str] = []
        self._text: list[str] = []
        self._heading: list[str] | None = None
        self.feed(html)
        self.close()
        if self._open:
            self.problems.append(f"not closed: {self._open}")

    @property
    def text(self) -> str:
        return " ".join("".join(self._text).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._start(tag, attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._start(tag, attrs)

    def _start(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        if len(values) != len(attrs):
            self.problems.append(f"an attribute twice in <{tag}>")
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "img":
            self.images.append(values)
        if tag == "a":
            self.links.append(values.get("href", ""))
        if re.fullmatch(r"h[1-6]", tag):
            self._heading = []
        if tag == "script" or any(name.startswith("on") for name in values):
            self.problems.append(f"a script in <{tag}>")
        for name in ("src", "href", "data", "action", "poster"):
            if name in values and not values[name].startswith(("data:", "#")):
                self.problems.append(f"<{tag} {name}={values[name][:40]}>")

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self._open or self._open[-1] != tag:
            self.problems.append(f"</{tag}> closes {self._open[-1:]}")
            return
        self._open.pop()
        if re.fullmatch(r"h[1-6]", tag) and self._heading is not None:
            self.headings.append((int(tag[1]), " ".join("".join(self._heading).split())))
            self._heading = None

    def handle_data(self, data: str) -> None:
        if "style" in self._open:
            if re.search(r"@import|url\((?!#)", data):
                self.problems.append("a style sheet that loads something")
            return
        self._text.append(data)
        if self._heading is not None:
            self._heading.append(data)


def check(html: str) -> Page:
    """Assert the common properties of our pages; return the page."""
    page = Page(html)
    assert html.startswith("<!DOCTYPE html>")
    assert '<html lang="en">' in html
    assert page.problems == []
    assert len(page.ids) == len(set(page.ids)), "an identifier twice"
    assert {link[1:] for link in page.links} <= set(page.ids), "a link to nowhere"
    used = set(re.findall(r'url\(#([^)]+)\)|<use href="#([^"]+)"', html))
    assert {name for pair in used for name in pair if name} <= set(page.ids), "a part of a picture that is not there"
    for image in page.images:
        assert len(image["alt"]) > 20
        assert base64.b64decode(image["src"].partition("base64,")[2])[:4] == b"\x89PNG"
    levels = [level for level, _ in page.headings]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels)), "a level of headings is skipped"
    return page
