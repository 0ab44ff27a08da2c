"""The command line of one tool and job, in this process: as the engine with our plug-in builds it, and as cwltool does."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cwl_utils.parser
import cwltool.builder
import streamflow.cwl.translator
from cwltool.context import LoadingContext, RuntimeContext
from cwltool.load_tool import load_tool
from cwltool.workflow import default_make_tool
from schema_salad.utils import yaml_no_ts
from streamflow.cwl import utils

from medweave_connectors.engine import command_lines
from medweave_connectors.engine.command_words import decimal_text
from medweave_connectors.engine.loading import document_loading

OUTPUT_FOLDER = "/out"
_stock_text = cwltool.builder.Builder.tostr


def _text(builder: cwltool.builder.Builder, value: Any) -> str:
    return decimal_text(value) if isinstance(value, float) else _stock_text(builder, value)


def tool_document(inputs: Mapping[str, Any], arguments: list[Any], *, shell: bool = False) -> dict[str, Any]:
    """Return a CommandLineTool that runs echo."""
    requirements: dict[str, Any] = {"InlineJavascriptRequirement": {}}
    return {
        "cwlVersion": "v1.2", "class": "CommandLineTool", "baseCommand": "echo", "outputs": [],
        "requirements": requirements | ({"ShellCommandRequirement": {}} if shell else {}),
        "inputs": dict(inputs), "arguments": arguments,
    }  # fmt: skip


def by_engine(folder: Path, tool: Mapping[str, Any], job: str) -> list[str]:
    """Return the words that a program gets from the engine; of a shell command the words that a shell reads.

    Args:
        folder: where the tool's document is written.
        job: text of the job file.
    """
    path = folder / "tool.cwl"
    path.write_text(json.dumps(tool), encoding="utf-8")
    parsed = cwl_utils.parser.load_document_by_uri(path.as_uri())
    required = {requirement.class_: requirement for requirement in parsed.requirements}
    command = command_lines.create_command(
        cwl_element=parsed, cwl_name_prefix="/", schema_def_types={}, step=None,
        context={"requirements": required, "hints": {}},
    )  # fmt: skip
    command.full_js = True
    values = streamflow.cwl.translator._inject_value(
        document_loading.load_inputfile_by_string("v1.2", job, path.as_uri())
    )

    async def words() -> list[str]:
        tokens = {name: await utils.build_token("v1.2", {}, None, value) for name, value in values.items()}
        built = command._get_executable_command(utils.build_context(tokens, OUTPUT_FOLDER, "/tmp"), tokens)
        return shlex.split(" ".join(built))

    return asyncio.run(words())


def by_cwltool(folder: Path, tool: Mapping[str, Any], job: str) -> list[str]:
    """Return the same from cwltool, with numbers as decimals: it rounds small ones to 0 and fails on large ones."""
    path = folder / "tool.cwl"
    path.write_text(json.dumps(tool), encoding="utf-8")
    loading, running = LoadingContext(), RuntimeContext()
    loading.construct_tool_object = default_make_tool
    running.basedir, running.outdir = str(folder), OUTPUT_FOLDER
    with patch.object(cwltool.builder.Builder, "tostr", _text):
        built = next(load_tool(str(path), loading).job(yaml_no_ts().load(job), lambda *_: None, running)).command_line
    return shlex.split(built[2]) if built[:2] == ["/bin/sh", "-c"] else [str(word) for word in built]
