from collections.abc import MutableSequence
from enum import Enum
from types import ModuleType
from typing import Any

import cwl_utils.types
from streamflow.core.context import StreamFlowContext
from streamflow.core.deployment import Connector, ExecutionLocation

def eval_expression(
    expression: Any,
    context: cwl_utils.types.CWLParameterContext,
    full_js: bool = False,
    expression_lib: MutableSequence[str] | None = None,
    timeout: int | None = None,
    strip_whitespace: bool = True,
) -> Any: ...
async def get_file_token(
    context: StreamFlowContext,
    connector: Connector,
    cwl_version: str,
    locations: MutableSequence[ExecutionLocation],
    token_class: str,
    filepath: str,
    basename: str | None = None,
    contents: str | None = None,
    file_format: str | None = None,
    is_literal: bool = False,
    load_contents: bool = False,
    load_listing: LoadListing | None = None,
) -> cwl_utils.types.CWLFileType | cwl_utils.types.CWLDirectoryType: ...
def get_name(name_prefix: str, cwl_name_prefix: str, element_id: Any, preserve_cwl_prefix: bool = False) -> str: ...
def get_path_from_token(token_value: cwl_utils.types.CWLFileType | cwl_utils.types.CWLDirectoryType) -> str | None: ...

class LoadListing(Enum):
    no_listing = 0
    shallow_listing = 1
    deep_listing = 2

def remap_token_value(path_processor: ModuleType, old_dir: str, new_dir: str, value: Any) -> Any: ...
async def update_file_token(
    context: StreamFlowContext,
    connector: Connector,
    cwl_version: str,
    location: ExecutionLocation,
    token_value: cwl_utils.types.CWLFileType | cwl_utils.types.CWLDirectoryType,
    load_contents: bool | None,
    load_listing: LoadListing | None = None,
) -> cwl_utils.types.CWLFileType | cwl_utils.types.CWLDirectoryType: ...
async def write_remote_file(
    context: StreamFlowContext, locations: MutableSequence[ExecutionLocation], content: str, path: str, relpath: str
) -> None: ...
