"""`make docs-site` is strict, and its result works from a folder: search included, no request to a network."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.browser import Browser, browser

ROOT = Path(__file__).resolve().parents[2]
BROKEN = {
    "[x](../../no-such-file.txt)": "no such path in the repository: ../../no-such-file.txt",
    "[x](../../../outside.txt)": "no such path in the repository: ../../../outside.txt",
    "[x](no-such-page.md)": "cross-reference target not found: 'no-such-page.md'",
    "[x](testbed.md#no-such-anchor)": "local id not found in doc 'how-to/testbed': 'no-such-anchor'",
    "[x](#no-such-anchor)": "cross-reference target not found: 'no-such-anchor'",
    "![x](../images/no-such-picture.svg)": "image file not readable: images/no-such-picture.svg",
}

pytestmark = [pytest.mark.slow]


def build(site: Path, sources: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run `make docs-site` without installing anything."""
    command = ["make", "--file", str(ROOT / "Makefile"), "--old-file", ".venv/.installed", "docs-site"]
    return subprocess.run(
        [*command, f"BIN={ROOT / '.venv' / 'bin'}", f"SITE={site}"],
        cwd=sources,
        text=True,
        capture_output=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built site."""
    folder = tmp_path_factory.mktemp("site") / "docs site"
    ended = build(folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def test_the_search_for_resume_finds_the_guide_offline(tab: Browser, site: Path) -> None:
    tab.open(site / "index.html")
    tab.evaluate("document.querySelector('.sidebar-search').value = 'resume'")
    tab.events.clear()
    tab.evaluate("document.querySelector('.sidebar-search-container').submit()")
    results: list[str] = []
    deadline = time.monotonic() + 30
    while not results and time.monotonic() < deadline:
        time.sleep(0.1)
        results = tab.evaluate("[...document.querySelectorAll('#search-results a')].map(link => link.href)")
    pages = [re.sub(r".*/docs%20site/|[?#].*", "", link) for link in results]
    assert pages[0] == "how-to/go-on-after-a-crash.html", pages
    tab.evaluate("document.querySelector('#search-results a').click()")
    while "resume" not in tab.evaluate("document.querySelector('article')?.textContent.toLowerCase() ?? ''"):
        assert time.monotonic() < deadline, "the result does not open"
        time.sleep(0.1)
    requested = [event["request"]["url"] for event in tab.named("Network.requestWillBeSent")]
    assert [url for url in requested if not url.startswith(("file:", "data:"))] == []
    assert tab.named("Runtime.exceptionThrown") == []


@pytest.mark.parametrize("page", ["index.html", "how-to/describe-your-site.html", "adr/index.html"])
def test_no_errors_and_no_requests(tab: Browser, site: Path, page: str) -> None:
    tab.open(site / page)
    assert [event["entry"]["text"] for event in tab.named("Log.entryAdded")] == []
    requested = [event["request"]["url"] for event in tab.named("Network.requestWillBeSent")]
    assert [url for url in requested if not url.startswith(("file:", "data:"))] == []


def test_no_page_loads_anything_from_a_network(site: Path) -> None:
    loads = re.compile(r"""(?:\bsrc=|@import|\burl\(|<link [^>]*href=)\s*["']?(?:https?:)?//[^"')\s]+""")
    files = [path for suffix in ("html", "css") for path in site.rglob(f"*.{suffix}")]
    assert len(files) > 50
    assert {path.name: found for path in files if (found := loads.findall(path.read_text()))} == {}


def test_a_page_of_each_folder_is_in_the_navigation(site: Path) -> None:
    sidebar = re.findall(r'<div class="sidebar-tree">.*?</aside>', (site / "index.html").read_text(), flags=re.DOTALL)[
        0
    ]
    captions = re.findall(r'<span class="caption-text">(.*?)</span>', sidebar)
    parts = [caption.partition(":")[0] for caption in captions]
    assert list(dict.fromkeys(parts)) == [
        "Tutorials",
        "How-to guides",
        "Reference",
        "Explanation",
        "Decisions and benchmarks",
    ]


def test_broken_links_and_pages_outside_of_the_navigation_fail(tmp_path: Path) -> None:
    sources = tmp_path / "repository"
    (sources / "docs" / "how-to").mkdir(parents=True)
    for name in ("conf.py", "search_scorer.js"):
        shutil.copy(ROOT / "docs" / name, sources / "docs")
    (sources / "docs" / "index.md").write_text(
        "# Start\n\n## Guides\n\n- [A](how-to/page.md)\n- [B](how-to/testbed.md)\n"
    )
    (sources / "docs" / "how-to" / "testbed.md").write_text("# Testbed\n\n[the list](../../streamflow.yml)\n")
    (sources / "streamflow.yml").touch()
    page = sources / "docs" / "how-to" / "page.md"
    page.write_text("# Page\n")
    ended = build(tmp_path / "site", sources)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    shown = (tmp_path / "site" / "how-to" / "testbed.html").read_text()
    assert (
        'the list (<code class="docutils literal notranslate"><span class="pre">streamflow.yml</span></code>)' in shown
    )

    page.write_text("# Page\n\n" + "\n".join(f"{link}\n" for link in BROKEN))
    (page.parent / "lost.md").write_text("# Lost\n")
    ended = build(tmp_path / "site", sources)
    assert ended.returncode != 0
    assert [message for message in BROKEN.values() if message not in ended.stderr] == []
    assert "lost.md: WARNING: document isn't included in any toctree" in ended.stderr
