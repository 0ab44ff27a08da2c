"""The names of StreamFlow that medweave replaces or overrides: each exists, with the signature that medweave expects."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import medweave_connectors
from medweave_connectors.engine import replacements
from medweave_connectors.engine.replacements import REPLACEMENTS, Replacement, check
from medweave_core.errors import BackendMissingError
from support.engine import run, write_workflow

ROOT = Path(__file__).resolve().parents[3]
REMAP_PATH = next(one for one in REPLACEMENTS if one.name == "remap_path")
IN_STOCK_STREAMFLOW = """
import sys
from medweave_connectors.engine import replacements
replacements.check()
ours = [name for name in sys.modules if name.startswith(("medweave_connectors.sites", "medweave_connectors.engine."))]
assert ours == ["medweave_connectors.engine.replacements"], ours
"""


# Classes of StreamFlow, and their methods that our subclasses override. One that StreamFlow renames would be overridden no more.
OVERRIDDEN = {
    "config.validator.SfValidator": "validate_file",
    "core.context.SchemaEntity": "get_schema",
    "core.data.StreamWrapper": "close read write",
    "core.deployment.BindingFilter": "get_targets",
    "core.deployment.Connector": "deploy get_available_locations",
    "core.scheduling.Policy": "get_location",
    "core.scheduling.Scheduler": "get_connector",
    "core.workflow.CommandTokenProcessor": "_load _save_additional_params bind check_type",
    "cwl.step.CWLExecuteStep": "_retrieve_output",
    "cwl.step.CWLInputInjectorStep": "process_input",
    "cwl.step.CWLTransferStep": "_update_file_token _update_listing transfer",
    "cwl.translator.CWLTranslator": "_inject_input _inject_inputs _recursive_translate _translate_command_line_tool",
    "workflow.combinator.DotProductCombinator": "_product",
    "workflow.step.Combinator": "_add_to_list",
    "data.manager.DefaultDataManager": "get_schema transfer_data",
    "data.remotepath.RemoteStreamFlowPath": "_test checksum chmod glob hardlink_to mkdir read_text resolve rmtree size symlink_to "
    "walk",
    "deployment.connector.base.BaseConnector": "copy_local_to_remote copy_remote_to_local copy_remote_to_remote "
    "get_stream_reader get_stream_writer run undeploy",
    "deployment.connector.local.LocalConnector": "copy_local_to_remote copy_remote_to_local copy_remote_to_remote deploy "
    "get_schema run undeploy",
    "deployment.connector.queue_manager.QueueManagerConnector": "copy_local_to_remote copy_remote_to_local copy_remote_to_remote "
    "get_available_locations run undeploy",
    "deployment.connector.queue_manager.SlurmConnector": "get_schema",
    "deployment.connector.ssh.SSHConnector": "_get_available_location copy_remote_to_remote deploy get_schema "
    "get_stream_reader get_stream_writer run undeploy",
    "deployment.connector.ssh.SSHStreamWriterWrapper": "_close write",
    "deployment.future.FutureConnector": "deploy",
    "deployment.manager.DefaultDeploymentManager": "_deploy undeploy_all",
    "deployment.wrapper.ConnectorWrapper": "deploy",
    "ext.plugin.StreamFlowPlugin": "register",
    "persistence.sqlite.SqliteConnection": "__aenter__ __aexit__ close",
    "persistence.sqlite.SqliteDatabase": "add_deployment add_workflow close get_deployment get_schema get_workflow "
    "get_workflows_by_name update_workflow",
    "scheduling.scheduler.DefaultScheduler": "_get_binding_filter _get_locations _get_policy get_schema notify_status schedule",
    "workflow.step.BaseStep": "_persist_token",
    "workflow.step.ExecuteStep": "_execute_command _run_job",
    "workflow.step.TransferStep": "run",
}  # fmt: skip


def refusal(replacement: Replacement) -> str:
    with pytest.raises(BackendMissingError) as caught:
        check([replacement])
    return str(caught.value)


def test_every_replacement_fits_the_installed_streamflow() -> None:
    # In a separate process: names that were replaced already are not checked again.
    subprocess.run([sys.executable, "-c", IN_STOCK_STREAMFLOW], check=True)


def test_the_version_is_the_pinned_one() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert f"streamflow=={replacements.STREAMFLOW_VERSION}" in extras["driver"]


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacements, "STREAMFLOW_VERSION", "0.2.0")
    with pytest.raises(BackendMissingError) as caught:
        check([])
    assert str(caught.value).splitlines() == [
        "medweave does not start: the installed StreamFlow or cwl-utils differs from the supported version.",
        "  seen:     StreamFlow 0.2.0rc3",
        "  expected: StreamFlow 0.2.0",
        "  do:       install streamflow==0.2.0 and cwl-utils as in medweave's constraints.txt",
    ]


@pytest.mark.parametrize("change", [{"name": "remap"}, {"owner": "streamflow.cwl.paths"}])
def test_a_missing_name_is_refused(change: dict[str, str]) -> None:
    missing = replace(REMAP_PATH, **change)
    text = refusal(missing)
    assert f"  seen:     {missing.owner}.{missing.name}: there is no such name\n" in text
    assert f"  expected: {missing.owner}.{missing.name}: (path_processor, path, old_dir, new_dir)\n" in text


def test_a_missing_key_is_refused() -> None:
    managers = next(one for one in REPLACEMENTS if one.name == "default")
    text = refusal(replace(managers, name="future"))
    assert "seen:     streamflow.deployment.deployment_manager_classes['future']: there is no such name" in text


@pytest.mark.parametrize(
    "signature",
    [
        "(path_processor, path, old_dir)",
        "(path_processor, path, old_dir, new_dir=None)",
        "async (path, old_dir, new_dir)",
    ],
)
def test_another_signature_is_refused(monkeypatch: pytest.MonkeyPatch, signature: str) -> None:
    monkeypatch.setattr("streamflow.cwl.utils.remap_path", lambda path_processor, path, old_dir, new_dir: path)
    text = refusal(replace(REMAP_PATH, signature=signature, ours="none:none"))
    assert "  seen:     streamflow.cwl.utils.remap_path: (path_processor, path, old_dir, new_dir)\n" in text
    assert f"  expected: streamflow.cwl.utils.remap_path: {signature}\n" in text


def test_all_differences_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replacements, "STREAMFLOW_VERSION", "0.2.0")
    with pytest.raises(BackendMissingError) as caught:
        check([replace(REMAP_PATH, name="first"), replace(REMAP_PATH, name="second")])
    assert caught.value.seen.splitlines() == [
        "StreamFlow 0.2.0rc3",
        "            streamflow.cwl.utils.first: there is no such name",
        "            streamflow.cwl.utils.second: there is no such name",
    ]


def test_a_run_with_another_version_is_refused_without_a_traceback(tmp_path: Path) -> None:
    preload = tmp_path / "preload.py"
    preload.write_text(
        "from medweave_connectors.engine import replacements\nreplacements.STREAMFLOW_VERSION = '0.2.0'\n"
    )
    write_workflow(tmp_path, {"first": "true"})
    ended = run(tmp_path, preload=preload)
    assert ended.exit_code == 1
    assert "expected: StreamFlow 0.2.0\n" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "runs").exists(), "nothing was started"


def accepts(ours: Callable[..., Any], stock: Callable[..., Any]) -> bool:
    """Return True if each call that fits the stock signature fits ours."""
    own = inspect.signature(ours).parameters
    kinds = {parameter.kind for parameter in own.values()}
    takes_any, takes_any_keyword = inspect.Parameter.VAR_POSITIONAL in kinds, inspect.Parameter.VAR_KEYWORD in kinds
    empty = inspect.Parameter.empty
    expected = inspect.signature(stock).parameters
    for place, (name, parameter) in enumerate(expected.items()):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            fits = takes_any
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            fits = takes_any_keyword
        elif name in own:
            moved = (
                parameter.kind is not inspect.Parameter.KEYWORD_ONLY
                and own[name].kind is not inspect.Parameter.KEYWORD_ONLY
                and list(own).index(name) != place
            )
            fits = not moved and (own[name].default is not empty or parameter.default is empty)
        else:
            fits = takes_any_keyword  # StreamFlow passes these by keyword
        if not fits:
            return False
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    extra = [own[name] for name in own if name not in expected and own[name].kind not in variadic]
    return all(parameter.default is not empty for parameter in extra)


@pytest.mark.parametrize("replacement", REPLACEMENTS, ids=lambda one: one.full_name)
def test_a_replacement_can_be_called_as_the_stock_one(replacement: Replacement) -> None:
    ours = pkgutil.resolve_name(f"medweave_connectors.engine.{replacement.ours}")
    parameters = replacement.signature.removeprefix("async ")
    scope: dict[str, Any] = {}
    exec(f"def stock{parameters}: ...", scope)
    assert accepts(ours, scope["stock"])
    is_async = inspect.iscoroutinefunction(ours)
    assert is_async is replacement.signature.startswith("async ")


def our_subclasses() -> Iterator[type]:
    """All classes of the connectors that have a class of StreamFlow among their bases."""
    for module in pkgutil.walk_packages(medweave_connectors.__path__, "medweave_connectors."):
        if ".transfer.agent" in module.name:  # programs for other machines
            continue
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and value.__module__ == module.name and stock_bases(value):
                yield value


def stock_bases(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.startswith("streamflow.")]


def overrides(cls: type) -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """The methods of StreamFlow that a class or its mixins override: name, ours, stock."""
    mixins = [base for base in cls.__mro__ if base.__module__.startswith("medweave") and not stock_bases(base)]
    own = {name: value for base in (*reversed(mixins), cls) for name, value in vars(base).items()}
    for name, value in own.items():
        ours = getattr(value, "__func__", value)  # of a static or class method
        stock = next((vars(base)[name] for base in stock_bases(cls) if name in vars(base)), None)
        stock = getattr(stock, "__func__", stock)
        if inspect.isfunction(ours) and inspect.isfunction(stock) and name != "__init__":
            yield name, ours, stock


SUBCLASSES = list(our_subclasses())


@pytest.mark.parametrize("cls", SUBCLASSES, ids=lambda cls: cls.__name__)
def test_overrides_can_be_called_as_the_stock_ones(cls: type) -> None:
    wrong = [
        f"{name}{inspect.signature(ours)} for {inspect.signature(stock)}"
        for name, ours, stock in overrides(cls)
        if not accepts(ours, stock) or inspect.iscoroutinefunction(ours) != inspect.iscoroutinefunction(stock)
    ]
    assert not wrong


def test_streamflow_has_the_methods_that_we_override() -> None:
    seen: dict[str, set[str]] = {}
    for cls in SUBCLASSES:
        for _, _, stock in overrides(cls):
            owner, _, name = stock.__qualname__.rpartition(".")
            seen.setdefault(f"{stock.__module__.removeprefix('streamflow.')}.{owner}", set()).add(name)
    assert {owner: " ".join(sorted(names)) for owner, names in seen.items()} == OVERRIDDEN


def test_only_engine_and_sites_import_more_than_streamflows_core() -> None:
    # import-linter takes an external package as a whole.
    package = ROOT / "connectors" / "medweave_connectors"
    imports = re.compile(r"^\s*(?:from|import) streamflow\.(?!core\b)", re.MULTILINE)
    files = {path.relative_to(package) for path in package.rglob("*.py") if imports.search(path.read_text("utf-8"))}
    assert {path.parts[0] for path in files} == {"engine", "sites", "plugin.py"}
