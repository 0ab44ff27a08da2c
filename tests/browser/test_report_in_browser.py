"""The report in a real browser: pictures load, nothing else is requested, no errors, and the text is readable."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from medweave_steps.cli import main as step_main
from support.browser import Browser, browser
from support.evaluated_classes import made_run
from support.recorded import completed_run, failed_run
from support.reported import evaluated
from support.reported_classes import write_class_inputs

# WCAG 2.1, success criterion 1.4.3: 4.5 to 1, or 3 to 1 for large text.
CONTRAST = """
(() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = text => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    const d = canvas.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const ground = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255, 1]);
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement, style = getComputedStyle(element);
    if (!node.data.trim() || element.closest('.plane, style, title, .inside, .skip') || !element.getClientRects().length) continue;
    const back = ground(element), colour = element.closest('svg') ? style.fill : style.color;
    const [a, b] = [light(over(rgba(colour), back)), light(back)];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) faint.push([node.data.trim().slice(0, 30), colour, Math.round(ratio * 100) / 100]);
  }
  return faint;
})()
"""
WIDER_THAN_THE_PAGE = """
[...document.querySelectorAll('main *, header *')].filter(e => !e.closest('.scroll, .skip') &&
  e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.tagName + '.' + e.className)
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a report of a completed run, one of a failed run, and the fragment alone."""
    root = tmp_path_factory.mktemp("pages")
    _, options = evaluated(root)
    assert step_main(["report", *options, "--output", str(root / "report")]) == 0
    classes = made_run(root / "classes", is_multi_label=False)
    classes.change_record(temperature=1.5)
    options = write_class_inputs(root / "classes", classes)
    assert step_main(["report", *options, "--output", str(root / "classes" / "report")]) == 0
    run = completed_run(root / "run")
    shutil.copytree(root / "report", run.report(500, "/report/0", "laptop") / "report")
    failed_run(root / "failed")
    for name in ("run", "failed"):
        assert main(["report", str(root / name)]) == 0
    return {
        "run": root / "run" / "report.html",
        "failed": root / "failed" / "report.html",
        "fragment": root / "report" / "fragment.html",
        "classes": root / "classes" / "report" / "fragment.html",
    }


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.mark.parametrize("name", ["run", "failed", "fragment", "classes"])
def test_no_errors_and_no_requests(tab: Browser, pages: dict[str, Path], name: str) -> None:
    tab.open(pages[name])
    entries = [event["entry"]["text"] for event in tab.named("Log.entryAdded")]
    assert entries == []
    assert tab.named("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Network.loadingFailed") == []
    urls = [event["request"]["url"] for event in tab.named("Network.requestWillBeSent")]
    assert [url for url in urls if not url.startswith("data:")] == [pages[name].as_uri()]
    assert tab.evaluate("document.compatMode") == "CSS1Compat"
    assert tab.evaluate("document.title.length") > 5


@pytest.mark.parametrize(("name", "expected"), [("run", 13), ("fragment", 13), ("failed", 0), ("classes", 6)])
def test_every_picture_is_loaded(tab: Browser, pages: dict[str, Path], name: str, expected: int) -> None:
    tab.open(pages[name])
    widths = tab.evaluate("[...document.images].map(i => i.complete ? i.naturalWidth : 0)")
    assert len(widths) == expected
    assert all(width >= 10 for width in widths)
    shown = tab.evaluate("[...document.images].map(i => i.getBoundingClientRect()).map(r => [r.width, r.height])")
    assert all(width > 40 and height > 20 for width, height in shown)
    charts = tab.evaluate("[...document.querySelectorAll('.chart svg, .timeline svg')].map(s => s.getBBox().width)")
    assert len(charts) == {"run": 5, "fragment": 4, "failed": 1, "classes": 3}[name]
    assert all(width > 100 for width in charts)


def test_outlines_are_aligned_with_their_pictures(tab: Browser, pages: dict[str, Path]) -> None:
    tab.resize(1280, 900)
    tab.open(pages["run"])
    apart = tab.evaluate(
        "[...document.querySelectorAll('.plane .frame')].map(f => ['img', 'svg'].map(t => f.querySelector(t)"
        ".getBoundingClientRect())).map(([a, b]) => Math.abs(a.x - b.x) + Math.abs(a.y - b.y) + Math.abs(a.width - b.width))"
    )
    assert len(apart) == 13
    assert max(apart) < 0.5


@pytest.mark.parametrize("name", ["run", "failed", "classes"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_fits_its_window(tab: Browser, pages: dict[str, Path], name: str, width: int) -> None:
    tab.resize(width, 900)
    tab.open(pages[name])
    assert tab.evaluate(WIDER_THAN_THE_PAGE) == []
    assert tab.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("name", ["run", "failed", "fragment", "classes"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(tab: Browser, pages: dict[str, Path], name: str, scheme: str) -> None:
    tab.scheme(scheme)
    tab.open(pages[name])
    ground = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 24, 30)"}[scheme]
    assert tab.evaluate(CONTRAST) == []
    # Check of the measure: a text in its background's color is reported.
    tab.evaluate("document.querySelector('h1').style.color = 'var(--paper)'")
    assert len(tab.evaluate(CONTRAST)) == 1


def test_accessibility_tree_has_names_and_headers(tab: Browser, pages: dict[str, Path]) -> None:
    tab.open(pages["run"])
    nodes = [node for node in tab.call("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]
    roles: dict[str, list[str]] = {}
    for node in nodes:
        roles.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    assert len(roles["image"]) == 13 + 6
    assert all(len(name) > 20 for name in roles["image"])
    assert {"banner", "main", "navigation", "contentinfo"} <= set(roles)
    assert tab.evaluate(
        "[...document.querySelectorAll('table')].every(t => t.caption && t.querySelector('thead th[scope=col]'))"
    )
    assert tab.evaluate("[...document.querySelectorAll('tbody tr')].every(r => r.querySelector('th[scope=row]'))")


def test_page_has_a_print_layout(tab: Browser, pages: dict[str, Path]) -> None:
    tab.resize(1280, 900)
    tab.open(pages["run"])
    pdf = base64.b64decode(tab.call("Page.printToPDF", printBackground=True)["data"])
    assert pdf.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type /Page\b", pdf)) <= 8
    tab.call("Emulation.setEmulatedMedia", media="print")
    tab.resize(700, 1000)
    columns = tab.evaluate("getComputedStyle(document.querySelector('.planes')).gridTemplateColumns.split(' ').length")
    assert columns == 5
    assert tab.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.scheme("light")
    tab.resize(1280, 900)
