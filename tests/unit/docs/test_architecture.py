"""Each hop of the traces in docs/explanation/architecture.md names a file that exists, and functions that it defines."""

from __future__ import annotations

import ast
import re

import pytest

from support.cwl_files import ROOT

PAGE = (ROOT / "docs/explanation/architecture.md").read_text()
CONNECTORS = ROOT / "connectors/medweave_connectors"
HOPS = re.findall(r"^\| [^|]+ \| `([\w/]+\.py)` \| ([^|]+) \|$", PAGE, flags=re.MULTILINE)


def test_the_page_has_three_traces() -> None:
    assert PAGE.count("\n## ") == 3
    assert len(HOPS) > 20


@pytest.mark.parametrize(("file", "functions"), HOPS)
def test_the_file_of_a_hop_defines_its_functions(file: str, functions: str) -> None:
    tree = ast.parse((CONNECTORS / file).read_text())
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert set(re.findall(r"`(\w+)`", functions)) - defined == set()
