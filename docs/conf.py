"""Sphinx configuration of the documentation site: `make docs-site` (ADR 22).

The pages are plain Markdown that reads the same on a Git host. Two rules connect them to the site:

- The navigation is the list of links in the lists and tables of `index.md` and `adr/index.md`, section by section.
- A link to a path outside `docs/` becomes the path in code font. A path that does not exist fails the build.
"""

from __future__ import annotations

import os
import re
from importlib.metadata import version as version_of
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[1]
LOGGER = logging.getLogger(__name__)

project = "medweave"
version = release = version_of("medweave")
extensions = ["myst_parser"]
myst_heading_anchors = 6  # the anchors that Git hosts give to headings
nitpicky = True

html_theme = "furo"
html_title = f"medweave {release}"
html_show_copyright = html_show_sphinx = html_show_sourcelink = html_copy_source = False
html_use_index = False
html_permalinks_icon = "#"
html_search_scorer = str(Path(__file__).with_name("search_scorer.js"))
html_show_search_summary = False  # it reads each page by fetch(), which browsers refuse for file://

NAVIGATION = ("index", "adr/index")
ENTRY = re.compile(r"^(?:- |\|).*", re.MULTILINE)
LINK = re.compile(r"\]\(([\w./-]+)\.md(?:#[\w-]+)?\)")


def append_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """Append a table of contents for each section of a navigation page: the pages that its lists and tables link to."""
    if docname not in NAVIGATION:
        return
    listed: set[str] = set()
    contents, part = "", ""
    for heading, section in re.findall(r"^(#+ .*)\n((?:(?!#+ ).*\n)*)", source[0], flags=re.MULTILINE):
        marks, _, title = heading.partition(" ")
        part = title if marks == "##" else part
        caption = {"#": "", "##": f":caption: {title}\n"}.get(marks, f":caption: {part}: {title}\n")
        pages = [page for entry in ENTRY.findall(section) for page in LINK.findall(entry)]
        new = [page for page in dict.fromkeys(pages) if page not in listed]
        listed.update(new)
        if new:
            contents += f"\n```{{toctree}}\n:hidden:\n{caption}\n" + "\n".join(new) + "\n```\n"
    source[0] += contents


class LinksToRepository(SphinxTransform):
    """Show a link to a path outside `docs/` as the path in code font, and warn if the path does not exist."""

    default_priority = 100  # before Sphinx collects files for download

    def apply(self, **kwargs: object) -> None:
        """Replace the links of one page."""
        page = Path(self.env.doc2path(self.env.docname))
        for link in list(self.document.findall(nodes.Element)):
            if link.get("reftype") != "myst" or link["reftarget"].startswith("#"):
                continue
            is_page = link.get("refdomain") == "doc"  # its target is a name below docs/, without the suffix
            target = f"{link['reftarget']}.md" if is_page else link["reftarget"].partition("#")[0]
            path = Path(os.path.normpath((Path(self.env.srcdir) if is_page else page.parent) / target))
            if path.is_relative_to(self.env.srcdir):
                continue
            if not path.exists() or not path.is_relative_to(ROOT):
                LOGGER.warning("no such path in the repository: %s", target, location=link)
                link.replace_self(nodes.literal(target, target))
                continue
            name = path.relative_to(ROOT).as_posix() + ("/" if path.is_dir() else "")
            if link.astext().strip("/") in (name.strip("/"), path.name):
                link.replace_self(nodes.literal(name, name))
            else:
                link.replace_self([*link[0].children, nodes.Text(" ("), nodes.literal(name, name), nodes.Text(")")])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register both rules."""
    app.connect("source-read", append_navigation)
    app.add_transform(LinksToRepository)
    return {"parallel_read_safe": True}
