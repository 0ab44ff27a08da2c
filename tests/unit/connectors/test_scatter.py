"""Scatter over many items: the same combinations as StreamFlow alone, without a look at all items for each one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamflow.core.workflow import Job, Token
from streamflow.cwl.processor import CWLTokenProcessor
from streamflow.workflow.combinator import DotProductCombinator
from streamflow.workflow.token import JobToken, ListToken

from medweave_connectors.engine.steps.scatter import MedweaveDotProductCombinator, get_job_token, process_file_token

Arrivals = list[tuple[str, str]]  # port and tag of each token
nothing: Any = None


def combine(kind: Callable[..., DotProductCombinator], arrivals: Arrivals) -> list[Any]:
    """Return all combinations, in order; the values of the tokens are their numbers. An error of the engine ends the list."""
    combinator = kind("/step-combinator", nothing)
    for port in ("image", "mask", "model"):
        combinator.add_item(port)

    async def go() -> list[Any]:
        found: list[Any] = []
        for number, (port, tag) in enumerate(arrivals):
            token = Token(number, tag=tag)
            token.persistent_id = number
            new = []
            try:
                async for schema in combinator.combine(port, token):
                    new.append(
                        {
                            key: (item["token"].tag, item["token"].value, item["input_ids"])
                            for key, item in schema.items()
                        }
                    )
            except IndexError as error:  # of StreamFlow, where two tags above hold the same tokens
                return [*found, str(error)]
            found += new
        return found

    return asyncio.run(go())


TAGS = st.sampled_from(["0", "0.0", "0.1", "0.2", "0.10", "0.1.0", "0.1.1", "0.2.0"])


@given(st.lists(st.tuples(st.sampled_from(["image", "mask", "model"]), TAGS), max_size=40))
def test_combinations_are_those_of_streamflow(arrivals: Arrivals) -> None:
    assert combine(MedweaveDotProductCombinator, arrivals) == combine(DotProductCombinator, arrivals)


def _job_tokens(*names: str) -> list[Any]:
    return [JobToken(Job(name, nothing, {}, "/in", "/out", "/tmp")) for name in names]


def test_the_token_of_a_job_is_found() -> None:
    tokens = _job_tokens("/copy/0.0", "/copy/0.1", "/copy/0.2")
    assert get_job_token("/copy/0.1", tokens) is tokens[1]
    with pytest.raises(Exception, match="Impossible to find job"):
        get_job_token("/copy/0.7", tokens)


class _Unread(ListToken):
    """A list whose values nobody reads."""

    def __init__(self) -> None:
        self.reads = 0
        super().__init__([], tag="0")

    @property
    def value(self) -> Any:
        self.reads += 1
        return []

    @value.setter
    def value(self, value: Any) -> None:
        pass


@pytest.mark.parametrize(("file_format", "reads"), [(None, 0), ("http://edamontology.org/format_3464", 1)])
def test_values_of_all_inputs_are_read_only_for_an_expression(file_format: str | None, reads: int) -> None:
    inputs = _Unread()
    workflow: Any = type("Workflow", (), {"format_graph": None})()
    processor = CWLTokenProcessor("images", workflow, file_format=file_format)
    value = {"class": "File", "contents": "a literal", "format": file_format}
    inputs.reads = 0
    assert asyncio.run(process_file_token(processor, {"images": inputs}, value)) == value
    assert bool(inputs.reads) == bool(reads)
