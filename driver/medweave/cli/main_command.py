"""`medweave COMMAND …`: the laptop's one command. It reads files that runs leave; StreamFlow itself runs elsewhere."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from medweave import __version__
from medweave.cli.output import discard, settle
from medweave.cli.parser import Parser
from medweave_core.contracts.model import RESEARCH_USE_ONLY
from medweave_core.errors import InternalError, StepError, StorageError, UsageError

# Name -> one line of help. The command's module is imported only when it is asked for.
COMMANDS = {
    "advise": "tell which training strategy on how many GPUs finishes soonest, by a few measurements",
    "attach": "show a run that goes on, as `medweave run` shows its own",
    "bind": "write a streamflow.yml that runs a workflow at a site",
    "cancel": "end a run that goes on, and clean up after it",
    "clean": "end and remove what a run has left at its sites",
    "completion": "print what makes your shell complete commands, options and files",
    "doctor": "try each hop of a site for real, and say what to mend",
    "explain": "tell why a run did a step's work, or took what an earlier run had done",
    "export": "write a run as a Workflow Run RO-Crate, without its data, to be shared",
    "logs": "print what the jobs of a step have printed, and follow them",
    "new": "write a workflow, a step or a site to start from",
    "plan": "tell what a run would do, where, with which data and for how long",
    "provision": "make the worker environments of a site there, without a network",
    "ps": "list the runs: which go on, how the others ended",
    "purge": "remove all that runs keep about one case",
    "report": "join a run's event log and its steps' reports into one HTML file that opens offline",
    "run": "run a workflow by `streamflow run`, and show how far it is",
    "schedule": "run a pipeline by itself at its times, where it has something to do",
    "schema": "print the JSON Schema of a kind of file, for editors and other programs",
    "validate": "find what is wrong in workflows, bindings, sites, jobs and charts, without running anything",
}
# The module of each command whose package does not have the command's name.
MODULES = {
    "attach": "runs.attach",
    "bind": "placement.bind",
    "cancel": "runs.cancel",
    "clean": "runs.clean",
    "completion": "cli.completion",
    "explain": "runs.explain",
    "export": "crate.command",
    "logs": "runs.logs",
    "new": "project.new",
    "provision": "provision.command",
    "ps": "runs.ps",
    "purge": "runs.purge",
    "report": "report.command",
    "run": "runs.run",
    "schema": "cli.schema",
}
DEBUG_HELP = "show the traceback of an internal error; `medweave run` also logs connector commands to connector.log"
INTERRUPTED = 130
PIPE_CLOSED = 141  # as of a program that SIGPIPE ends: who reads the output has read enough


class Command(Protocol):
    """What a command's module holds."""

    DESCRIPTION: str

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Adds the command's arguments."""

    def run(self, namespace: argparse.Namespace) -> int:
        """Does the work; returns the exit code, or raises a StepError that tells the user what to do."""


def load_command(name: str) -> Command:
    """The module of a command."""
    return cast(Command, importlib.import_module(f"medweave.{MODULES.get(name, name)}"))


def build_parser(name: str | None = None) -> Parser:
    """The parser of one command, or of the list of commands."""
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
    lines = "\n".join(f"  {word:<10} {text}" for word, text in COMMANDS.items())
    parser = Parser(
        prog="medweave",
        usage="medweave COMMAND [options]   (medweave COMMAND --help lists them)",
        description=f"Pipelines for medical imaging over the sites a hospital has.\n\ncommands:\n{lines}\n\n{RESEARCH_USE_ONLY}",
        formatter_class=formatter,
    )
    parser.add_argument("--version", action="version", version=f"medweave {__version__}")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code (2 usage, 65 data, 69 missing library, 70 a fault of its own, 74 I/O, 130 interrupted)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0].startswith("-"):
        build_parser().parse_args(words or ["--help"])
        return 0
    name = words[0]
    if name not in COMMANDS:
        from medweave_core.documents.closest_match import closest

        unknown = UsageError(
            f"there is no command '{name}'.", expected=f"one of {', '.join(COMMANDS)}",
            do=closest(name, list(COMMANDS)) or "medweave --help tells what each does",
        )  # fmt: skip
        print(f"medweave: {unknown}", file=sys.stderr)
        return unknown.exit_code
    parser = build_parser(name)
    parser.refuse_unknown(words[1:])
    namespace = parser.parse_args(words[1:])
    if namespace.debug and name == "run":
        os.environ["MEDWEAVE_LOG"] = "debug"  # for the engine that `medweave run` starts
    try:
        return _called(name, namespace)
    finally:
        settle(sys.stderr)


def _called(name: str, namespace: argparse.Namespace) -> int:
    """Runs a command; its errors become a line and an exit code."""
    try:
        code = load_command(name).run(namespace)
        sys.stdout.flush()  # what it cannot write is told here, and not by the interpreter at its end
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
        lost = StorageError(
            "a file could not be read or written." if error.filename else "the output could not be written.",
            seen=": ".join(map(str, filter(None, (error.strerror or str(error), error.filename)))),
        )
        print(f"medweave {name}: {lost}", file=sys.stderr)
        if not error.filename:
            discard(sys.stdout)
        return lost.exit_code
    except Exception as error:
        if namespace.debug:
            raise
        own = InternalError(
            "it failed by itself: this is a fault of medweave.", seen=f"{type(error).__name__}: {error}",
            do="run it again with --debug, and report what it shows",
        )  # fmt: skip
        print(f"medweave {name}: {own}", file=sys.stderr)
        return own.exit_code
