"""`medweave-step VERB …`: the worker's one command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from medweave_core.contracts.model import RESEARCH_USE_ONLY
from medweave_core.errors import StepError, UsageError
from medweave_steps import __version__
from medweave_steps.runtime.verb import Verb, add_verb_options, execute

# Name -> one line of help. The verb's module is imported only when it is used.
VERBS = {
    "phantom": "write a synthetic cohort: chest CT as DICOM series, DICOM SEG and MSD folder, or brain MR as MSD folder",
    "check": "say what is in a cohort and what is wrong with it",
    "deidentify": "turn identified data into de-identified data, and keep the way back at home",
    "preprocess": "orient, resample, crop to the lungs and split a cohort",
    "train": "train the segmentation network",
    "train-distributed": "train a model further: replicas on several nodes, averaged in rounds",
    "search": "train every trial of a grid of options, and choose the best",
    "export": "write a trained model as ONNX and OpenVINO IR, and check their parity",
    "bundle": "take a MONAI Bundle with weights as a model",
    "quantize": "make an int8 candidate of an exported model",
    "gate": "measure the candidates on this machine and accept or refuse them",
    "segment": "segment prepared cases and write NIfTI, DICOM SEG, DICOM SR and a table",
    "evaluate": "compare segmentations with the ground truth, with confidence intervals",
    "report": "put metrics, curves and overlays into the report's deterministic part",
}


def load_verb(name: str) -> Verb:
    """Return the verb's description, options and program, without its heavy libraries."""
    verb = importlib.import_module(f"medweave_steps.{name.replace('-', '_')}.command").VERB
    assert isinstance(verb, Verb)
    return verb


def build_parser(verb: Verb | None, words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser for one verb, or for the list of verbs.

    Args:
        words: the command line of the verb, which may select a strategy or network of another package.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    if verb is not None:
        parser = argparse.ArgumentParser(
            prog=f"medweave-step {verb.name}",
            description=f"{verb.description}\n\n{RESEARCH_USE_ONLY}",
            formatter_class=formatter,
        )
        add_verb_options(parser, verb, words)
        return parser
    lines = "\n".join(f"  {name:<17} {text}" for name, text in VERBS.items())
    parser = argparse.ArgumentParser(
        prog="medweave-step",
        usage="medweave-step VERB [options]   (medweave-step VERB --help lists them)",
        description=f"One step of a medical imaging pipeline.\n\nverbs:\n{lines}\n\n{RESEARCH_USE_ONLY}",
        formatter_class=formatter,
    )
    parser.add_argument("--version", action="version", version=f"medweave-step {__version__}")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console command and return its exit code (2 usage, 65 data, 69 library, 70 internal, 74 I/O, 75 retry)."""
    try:
        return _main(list(sys.argv[1:] if arguments is None else arguments))
    except KeyboardInterrupt:  # before the verb listens to signals: its module is still being imported
        print("medweave-step: interrupted", file=sys.stderr)
        return 130


def _main(words: list[str]) -> int:
    if not words or words[0].startswith("-"):
        build_parser(None).parse_args(words or ["--help"])
        return 0
    if words[0] not in VERBS:
        print(f"medweave-step: there is no verb '{words[0]}'. Known: {', '.join(VERBS)}", file=sys.stderr)
        return UsageError.exit_code
    verb = load_verb(words[0])
    try:
        parser = build_parser(verb, words[1:])
    except StepError as error:
        print(f"medweave-step {verb.name}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return execute(verb, parser.parse_args(words[1:]))


if __name__ == "__main__":
    sys.exit(main())
