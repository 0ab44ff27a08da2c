"""The type check of a workflow reads each tool once, with the same result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cwl_utils.parser
import cwl_utils.parser.utils
import pytest

from medweave_connectors.engine.loading import document_loading

WORKFLOWS = Path(__file__).parents[3] / "workflows" / "lung-nodule-segmentation"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tools that were read."""
    tools: list[str] = []

    def read(step: Any) -> Any:
        tools.append(step.run)
        return stock(step)

    stock = document_loading._stock_step
    monkeypatch.setattr(document_loading, "_stock_step", read)
    monkeypatch.setattr(document_loading, "_tools", {})
    monkeypatch.setattr(cwl_utils.parser.utils, "load_step", document_loading.load_step)
    return tools


def test_each_tool_is_read_once(reads: list[str]) -> None:
    workflow = cwl_utils.parser.load_document_by_uri(WORKFLOWS / "train.cwl")
    for _ in range(2):
        cwl_utils.parser.utils.static_checker(workflow)
    assert sorted(reads) == sorted({step.run for step in workflow.steps})
    assert len(reads) > 5


def test_the_types_are_those_of_the_tools(reads: list[str]) -> None:
    workflow = cwl_utils.parser.load_document_by_uri(WORKFLOWS / "train.cwl")
    cwl_utils.parser.utils.static_checker(workflow)
    for step in workflow.steps:
        tool = cwl_utils.parser.load_document_by_uri(step.run, step.loadingOptions)
        for port in tool.outputs:
            stored = cwl_utils.parser.utils.type_for_step_output(step, port.id, "v1.2")
            assert str(cwl_utils.parser.save(stored)).endswith(str(cwl_utils.parser.save(port.type_)).partition("#")[2])
