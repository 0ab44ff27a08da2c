"""Charts as inline SVG whose bytes depend on the figures alone, and whose colors follow the page (light, dark, print)."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from medweave_steps.runtime.imports import require

# matplotlib writes these; the page's own colors take their place (see contracts/report_style.css).
_COLORS = {
    "#010101": "currentColor",
    "#020202": "var(--soft)",
    "#030303": "var(--line)",
    "#040404": "var(--c1)",
    "#050505": "var(--c2)",
    "#060606": "var(--c3)",
    "#070707": "var(--paper)",
}
INK, SOFT, LINE, FIRST, SECOND, THIRD, PAPER = _COLORS


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart with its alternative text."""

    svg: str
    alt: str
    caption: str


def svg_of(draw: Callable[[Any], None], name: str, *, rows: int = 1, extra: str = "report") -> str:
    """Draw on one pair of axes; with more `rows`, on a list of axes below each other with one horizontal axis, on a wide picture.

    Args:
        name: keeps the identifiers of several charts on one page apart.
        extra: extra of medweave that has matplotlib.
    """
    matplotlib = require("matplotlib", extra=extra)
    figure_module = require("matplotlib.figure", extra=extra)
    backend = require("matplotlib.backends.backend_svg", extra=extra)
    settings = {
        "svg.fonttype": "none", "svg.hashsalt": f"medweave-{name}", "font.family": "sans-serif", "font.size": 10.5,
        "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT,
        "xtick.labelcolor": INK, "ytick.labelcolor": INK, "grid.color": LINE, "hatch.color": SECOND, "hatch.linewidth": 1.0,
        "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "path.simplify": False,
    }  # fmt: skip
    with matplotlib.rc_context(settings):
        figsize = (5.6, 3.3) if rows == 1 else (11.0, 1.8 * rows)
        figure = figure_module.Figure(figsize=figsize, layout="constrained")
        figure.patch.set_visible(False)
        panels = list(figure.subplots(rows, sharex=True, squeeze=False)[:, 0])
        for axes in panels:
            axes.patch.set_visible(False)
            axes.grid(axis="y", linewidth=0.8)
        draw(panels[0] if rows == 1 else panels)
        stream = io.BytesIO()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        backend.FigureCanvasSVG(figure).print_svg(stream, metadata=nothing)
    return _for_page(stream.getvalue().decode("utf-8"), name)


def _for_page(svg: str, name: str) -> str:
    svg = svg[svg.index("<svg") :].rstrip()
    # Its style sheet would reach every other picture of the page, and its identifiers those of every other chart.
    svg = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'url\(#([^)]+)\)|xlink:href="#([^"]+)"', svg))
    referenced = {part for pair in used for part in pair if part}

    def identifier(match: re.Match[str]) -> str:
        return f' id="{name}-{match[1]}"' if match[1] in referenced else ""

    svg = re.sub(r' id="([^"]+)"', identifier, svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    svg = re.sub(r"font-family: [^;\"]*; ?", "", svg)
    svg = re.sub(r"font: [^;\"]*?(\d+(?:\.\d+)?)px[^;\"]*", r"font-size: \1px", svg)
    head = re.match(r"<svg[^>]*>", svg)
    assert head is not None
    box = re.search(r'viewBox="[^"]+"', head[0])
    assert box is not None
    svg = f'<svg {box[0]} stroke-linejoin="round" aria-hidden="true" focusable="false">' + svg[head.end() :]
    for written, shown in _COLORS.items():
        svg = svg.replace(written, shown)
    return re.sub(r"\n\s*", "\n", svg)
