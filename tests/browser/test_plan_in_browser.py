"""The picture of a plan in a real browser: its words fit their boxes, and can be read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from support.browser import Browser, browser
from support.cwl_files import ROOT

TRAIN = ROOT / "workflows" / "lung-nodule-segmentation" / "train.cwl"
SITES = ("testbed", "university-hpc-and-hospital", "hpc-and-cloud")
# A text belongs to the box in which it begins, else to the picture.
OUTSIDE = """
(() => {
  const inside = (a, b) => a.left >= b.left - .5 && a.right <= b.right + .5 && a.top >= b.top - .5 && a.bottom <= b.bottom + 2;
  const boxes = [...document.querySelectorAll('.box, .off, .file, .band')].map(e => e.getBoundingClientRect());
  const whole = document.documentElement.getBoundingClientRect();
  return [...document.querySelectorAll('text')].filter(e => {
    const words = e.getBoundingClientRect(), x = words.left + 1, y = (words.top + words.bottom) / 2;
    const around = boxes.filter(b => b.left <= x && x <= b.right && b.top <= y && y <= b.bottom)
      .sort((a, b) => a.width * a.height - b.width * b.height)[0] || whole;
    return !inside(words, around);
  }).map(e => e.textContent);
})()
"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def draw(folder: Path, site: str) -> None:
    """Writes plan.svg, as it is where nothing has run before: the checkout may have run `make demo`, or may not."""
    (folder / "runs").mkdir()
    job = ROOT / "deployments" / "jobs" / f"{site}-train.yml"
    if not job.is_file():  # the demo's, with a cohort that is there
        (folder / "cohort").mkdir()
        text = (TRAIN.parent / "jobs" / "demo-train.yml").read_text()
        job = folder / "job.yml"
        job.write_text(text.replace("../../../build/demo/cohort", "cohort"))
    asked = ["plan", str(TRAIN), "--site", site, "--runs", str(folder / "runs"), "--job", str(job)]
    assert main([*asked, "--format", "svg", "-o", str(folder / "plan.svg")]) == 0


@pytest.mark.parametrize("site", SITES)
def test_words_stay_in_their_boxes(tab: Browser, tmp_path: Path, site: str) -> None:
    draw(tmp_path, site)
    tab.open(tmp_path / "plan.svg")
    assert tab.evaluate("document.querySelectorAll('text').length") > 20
    assert tab.evaluate(OUTSIDE) == []
    # The measure itself: words that are too long are found.
    tab.evaluate("document.querySelector('.box').parentElement.querySelector('text').textContent = 'x'.repeat(60)")
    assert tab.evaluate(OUTSIDE) == ["x" * 60]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_picture_follows_the_reader_s_colours(tab: Browser, tmp_path: Path, scheme: str) -> None:
    draw(tmp_path, "testbed")
    tab.scheme(scheme)
    tab.open(tmp_path / "plan.svg")
    fills = tab.evaluate("['.name', '.box'].map(s => getComputedStyle(document.querySelector(s)).fill)")
    assert (
        fills
        == {"light": ["rgb(28, 36, 48)", "rgb(255, 255, 255)"], "dark": ["rgb(230, 234, 240)", "rgb(20, 24, 31)"]}[
            scheme
        ]
    )
