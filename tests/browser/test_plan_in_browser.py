"""The picture of a plan in a real browser: texts fit their boxes and are readable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from medweave.cli.main_command import main
from support.browser import Browser, browser
from support.cwl_files import ROOT

TRAIN = ROOT / "workflows" / "lung-nodule-segmentation" / "train.cwl"
SITES = ("testbed", "university-hpc-and-hospital", "hpc-and-cloud")
# A text belongs to the box in which it starts, else to the picture.
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
    """Write plan.svg without earlier runs, whether or not `make demo` has run in the checkout."""
    (folder / "runs").mkdir()
    job = ROOT / "deployments" / "jobs" / f"{site}-train.yml"
    if not job.is_file():  # the demo's job file, with an existing cohort
        (folder / "cohort").mkdir()
        text = (TRAIN.parent / "jobs" / "demo-train.yml").read_text()
        job = folder / "job.yml"
        job.write_text(text.replace("../../../build/demo/cohort", "cohort"))
    words = ["plan", str(TRAIN), "--site", site, "--runs", str(folder / "runs"), "--job", str(job)]
    assert main([*words, "--format", "svg", "-o", str(folder / "plan.svg")]) == 0


@pytest.mark.parametrize("site", SITES)
def test_text_fits_its_boxes(tab: Browser, tmp_path: Path, site: str) -> None:
    draw(tmp_path, site)
    tab.open(tmp_path / "plan.svg")
    assert tab.evaluate("document.querySelectorAll('text').length") > 20
    assert tab.evaluate(OUTSIDE) == []
    # Check of the measure: a text that is too long is reported.
    tab.evaluate("document.querySelector('.box').parentElement.querySelector('text').textContent = 'x'.repeat(60)")
    assert tab.evaluate(OUTSIDE) == ["x" * 60]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_picture_follows_the_color_scheme(tab: Browser, tmp_path: Path, scheme: str) -> None:
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
