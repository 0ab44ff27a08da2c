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
        group: its heading in `medweave --help`.
        help: its line in `medweave --help`.
        module: below `medweave`; imported when the command runs or when its options are needed.
    """

    group: str
    help: str
    module: str


SET_UP, CHECK, RUN, INSPECT, SHARE = GROUPS = ("Set up", "Check", "Run", "Inspect", "Share")
COMMANDS = {
    "new": CommandEntry(SET_UP, "create a workflow, a step or a site file from a template", "project.new"),
    "bind": CommandEntry(SET_UP, "write the StreamFlow file that binds a workflow to a site", "placement.bind"),
    "provision": CommandEntry(
        SET_UP,
        "install the worker environments of a site over ssh; the site needs no internet access",
        "provision.command",
    ),
    "schema": CommandEntry(SET_UP, "print the JSON Schema of a file type, for editors and programs", "cli.schema"),
    "completion": CommandEntry(SET_UP, "print the shell completion script (bash, zsh)", "cli.completion"),
    "validate": CommandEntry(
        CHECK, "check workflows, bindings, sites, job files and charts, offline", "validate.command"
    ),
    "plan": CommandEntry(CHECK, "show placement, transfers, cache hits, time and cost of a run", "plan.command"),
    "doctor": CommandEntry(CHECK, "test the connections and services of a site and suggest fixes", "doctor.command"),
    "advise": CommandEntry(
        CHECK, "predict which training strategy finishes soonest on how many GPUs", "advise.command"
    ),
    "run": CommandEntry(RUN, "run or resume a workflow and show its progress", "runs.run"),
    "schedule": CommandEntry(RUN, "run a workflow at set times when its inputs changed", "schedule.command"),
    "attach": CommandEntry(RUN, "show the progress of a workflow that is running", "cli.attach"),
    "cancel": CommandEntry(RUN, "cancel a running workflow and clean up", "runs.cancel"),
    "clean": CommandEntry(RUN, "cancel leftover jobs of a run and remove its files at the sites", "runs.clean"),
    "purge": CommandEntry(RUN, "remove all data of one case from runs and caches", "runs.purge"),
    "ps": CommandEntry(INSPECT, "list the runs and their states", "runs.ps"),
    "logs": CommandEntry(INSPECT, "print or follow the output of the jobs of a step", "runs.logs"),
    "explain": CommandEntry(INSPECT, "explain why a step ran or was a cache hit", "runs.explain"),
    "report": CommandEntry(INSPECT, "write the HTML report of a run", "report.command"),
    "export": CommandEntry(SHARE, "export a run as a Workflow Run RO-Crate, without its data", "crate.command"),
}
DEBUG_HELP = "show the traceback of an internal error; `medweave run` also logs connector commands to connector.log"
INTERRUPTED = 130
PIPE_CLOSED = 141  # 128 + SIGPIPE: the reader of the output closed the pipe


class CommandModule(Protocol):
    """The interface of a command's module."""

    DESCRIPTION: str
    EPILOG: str  # examples, exit codes

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
            description=command.DESCRIPTION,
            epilog=f"{command.EPILOG}\n\n{RESEARCH_USE_ONLY}",
            formatter_class=formatter,
        )
        command.add_options(parser)
        parser.add_argument("--debug", action="store_true", help=DEBUG_HELP)
        return parser
    groups = "\n\n".join(
        "\n".join(
            [f"{group}:", *(f"  {word:<10} {entry.help}" for word, entry in COMMANDS.items() if entry.group == group)]
        )
        for group in GROUPS
    )
    parser = Parser(
        prog="medweave",
        usage="medweave COMMAND [options]",
        description=f"Run medical-imaging AI pipelines on a laptop, a Slurm cluster and Kubernetes.\n\n{groups}",
        epilog=f"`medweave COMMAND --help` shows options, examples and exit codes.\n\n{RESEARCH_USE_ONLY}",
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
            f"unknown command '{name}'.", expected=f"one of {', '.join(COMMANDS)}",
            do=closest(name, list(COMMANDS)) or "see `medweave --help`",
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
            do="run the command again with --debug, and report the traceback",
        )  # fmt: skip
        print(f"medweave {name}: {internal_error}", file=sys.stderr)
        return internal_error.exit_code
