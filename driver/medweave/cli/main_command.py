"""`medweave COMMAND …`: the laptop's one command. It reads files that runs leave; StreamFlow itself runs elsewhere."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from medweave import __version__
from medweave.cli.parser import Parser
from medweave.project.console import discard, settle
from medweave_core.contracts.model import RESEARCH_USE_ONLY
from medweave_core.errors import InternalError, StepError, StorageError, UsageError


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command of the list.

    Attributes:
        help: its line in `medweave --help`.
        module: below `medweave`; imported when the command runs or when its options are needed.
    """

    help: str
    module: str


COMMANDS = {
    "advise": CommandEntry(
        "predict from a few measurements which training strategy finishes soonest", "advise.command"
    ),
    "attach": CommandEntry("attach to a running workflow and show its progress", "cli.attach"),
    "bind": CommandEntry("write a streamflow.yml that runs a workflow at a site", "placement.bind"),
    "cancel": CommandEntry("cancel a running workflow and clean up after it", "runs.cancel"),
    "clean": CommandEntry("cancel jobs and remove files that a run left at its sites", "runs.clean"),
    "completion": CommandEntry(
        "print a script that completes commands, options and files in a shell", "cli.completion"
    ),
    "doctor": CommandEntry("test each connection and service of a site and suggest fixes", "doctor.command"),
    "explain": CommandEntry("explain why a step ran or was a cache hit", "runs.explain"),
    "export": CommandEntry("write a run as a Workflow Run RO-Crate without its data", "crate.command"),
    "logs": CommandEntry("print and follow the output of a step's jobs", "runs.logs"),
    "new": CommandEntry("write a workflow, a step or a site to start from", "project.new"),
    "plan": CommandEntry("show what a run would do, where, with which data and for how long", "plan.command"),
    "provision": CommandEntry("install the worker environments of a site without a network there", "provision.command"),
    "ps": CommandEntry("list the runs and their states", "runs.ps"),
    "purge": CommandEntry("remove all data of one case from runs and caches", "runs.purge"),
    "report": CommandEntry("write the HTML report of a run, one file that opens offline", "report.command"),
    "run": CommandEntry("run a workflow by `streamflow run` and show its progress", "runs.run"),
    "schedule": CommandEntry("run a pipeline at set times when its inputs changed", "schedule.command"),
    "schema": CommandEntry("print the JSON Schema of a kind of file, for editors and other programs", "cli.schema"),
    "validate": CommandEntry(
        "check workflows, bindings, sites, jobs and charts without running anything", "validate.command"
    ),
}
DEBUG_HELP = "show the traceback of an internal error; `medweave run` also logs connector commands to connector.log"
INTERRUPTED = 130
PIPE_CLOSED = 141  # 128 + SIGPIPE: the reader of the output closed the pipe


class CommandModule(Protocol):
    """The interface of a command's module."""

    DESCRIPTION: str

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments to its parser."""

    def run(self, namespace: argparse.Namespace) -> int:
        """Run the command and return the exit code; a StepError says what the user can do."""


def load_command(name: str) -> CommandModule:
    """Return the module of a command."""
    return cast(CommandModule, importlib.import_module(f"medweave.{COMMANDS[name].module}"))


def build_parser(name: str | None = None) -> Parser:
    """Return the parser of one command, or the parser that lists the commands."""
    formatter = argparse.RawDescriptionHelpFormatter
    if name is not None:
        command = load_command(name)
        parser = Parser(
            prog=f"medweave {name}",
            description=f"{command.DESCRIPTION}\n\n{RESEARCH_USE_ONLY}",
            formatter_class=formatter,
        )
        command.add_options(parser)
        parser.add_argument("--debug", action="store_true", help=DEBUG_HELP)
        return parser
    lines = "\n".join(f"  {word:<10} {entry.help}" for word, entry in COMMANDS.items())
    parser = Parser(
        prog="medweave",
        usage="medweave COMMAND [options]   (medweave COMMAND --help lists them)",
        description=f"Pipelines for medical imaging over the sites a hospital has.\n\ncommands:\n{lines}\n\n{RESEARCH_USE_ONLY}",
        formatter_class=formatter,
    )
    parser.add_argument("--version", action="version", version=f"medweave {__version__}")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code (2 usage, 65 data, 69 missing library, 70 internal, 74 I/O, 130 interrupted)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0].startswith("-"):
        build_parser().parse_args(words or ["--help"])
        return 0
    name = words[0]
    if name not in COMMANDS:
        from medweave_core.documents.closest_match import closest

        unknown = UsageError(
            f"there is no command '{name}'.", expected=f"one of {', '.join(COMMANDS)}",
            do=closest(name, list(COMMANDS)) or "medweave --help lists them",
        )  # fmt: skip
        print(f"medweave: {unknown}", file=sys.stderr)
        return unknown.exit_code
    parser = build_parser(name)
    parser.refuse_unknown(words[1:])
    namespace = parser.parse_args(words[1:])
    if namespace.debug and name == "run":
        os.environ["MEDWEAVE_LOG"] = "debug"  # for the engine that `medweave run` starts
    try:
        return _run_command(name, namespace)
    finally:
        settle(sys.stderr)


def _run_command(name: str, namespace: argparse.Namespace) -> int:
    """Run a command; print an error as one message and return its exit code."""
    try:
        code = load_command(name).run(namespace)
        sys.stdout.flush()  # report a failed write here, not when the interpreter exits
        return code
    except StepError as error:
        print(f"medweave {name}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"medweave {name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        discard(sys.stdout)
        return PIPE_CLOSED
    except OSError as error:
        storage_error = StorageError(
            "a file could not be read or written." if error.filename else "the output could not be written.",
            seen=": ".join(map(str, filter(None, (error.strerror or str(error), error.filename)))),
        )
        print(f"medweave {name}: {storage_error}", file=sys.stderr)
        if not error.filename:
            discard(sys.stdout)
        return storage_error.exit_code
    except Exception as error:
        if namespace.debug:
            raise
        internal_error = InternalError(
            "internal error (bug in medweave).", seen=f"{type(error).__name__}: {error}",
            do="run it again with --debug, and report the traceback",
        )  # fmt: skip
        print(f"medweave {name}: {internal_error}", file=sys.stderr)
        return internal_error.exit_code
