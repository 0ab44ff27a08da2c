"""`medweave-step VERB …`: the worker's one command."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from medweave_core.contracts.model import RESEARCH_USE_ONLY
from medweave_core.documents.closest_match import closest
from medweave_core.errors import StepError, UsageError
from medweave_steps import __version__
from medweave_steps.runtime.parser import StepParser
from medweave_steps.runtime.verb import Verb, add_verb_options, execute

# Name -> one line of help. The verb's module is imported only when it is used.
VERBS = {
    "phantom": "generate a synthetic cohort: chest CT, brain MR, T1-weighted heads, photographs, X-rays, ECG, or tables",
    "check": "validate a cohort: list its cases and report problems",
    "deidentify": "de-identify a cohort and write the re-identification map",
    "preprocess": "reorient, resample, crop and split a cohort",
    "encode-table": "encode the rows of a table as input of a network, and split them",
    "train": "train a network for segmentation or classification",
    "train-distributed": "continue training a model with several replicas, whose weights are averaged in rounds",
    "prune": "prune a trained model within a tolerance of the validation loss: fewer channels, or weights set to zero",
    "place-layers": "measure the loads of a network's layers and place them on devices for training in stages",
    "search": "run a hyperparameter search over a grid of training options and select the best model",
    "export": "export a trained model to ONNX and OpenVINO IR, and check numerical parity",
    "bundle": "import a MONAI Bundle with weights as a model",
    "quantize": "quantize an exported model to an int8 candidate",
    "gate": "compare compressed models and runtimes on this machine, and accept one",
    "segment": "segment preprocessed cases; write NIfTI masks, DICOM SEG, DICOM SR and a lesion table",
    "classify": "classify images, volumes, ECG recordings or rows; write a table of calibrated probabilities, and DICOM SR",
    "explain": "explain classifications with Grad-CAM maps on the source grid, with mass per region and a sanity check",
    "evaluate": "compare segmentations or classifications with the ground truth: metrics with confidence intervals",
    "stats": "compare groups of measurements: analysis of variance and Tukey's test, or paired tests over patients",
    "report": "write metrics, training curves and overlays as a reproducible HTML fragment",
}


def load_verb(name: str) -> Verb:
    """Return the verb's description, options and program, without its heavy libraries."""
    verb = importlib.import_module(f"medweave_steps.{name.replace('-', '_')}.command").VERB
    assert isinstance(verb, Verb)
    return verb


def build_parser(verb: Verb | None, words: Sequence[str] = ()) -> StepParser:
    """Return the parser for one verb, or for the list of verbs.

    Args:
        words: the command line of the verb, which may select a strategy or network of another package.
    """
    formatter = argparse.RawDescriptionHelpFormatter
    if verb is not None:
        parser = StepParser(
            prog=f"medweave-step {verb.name}",
            description=f"{verb.description}\n\n{RESEARCH_USE_ONLY}",
            epilog=f"example:\n  {verb.example}",
            formatter_class=formatter,
        )
        add_verb_options(parser, verb, words)
        return parser
    lines = "\n".join(f"  {name:<17} {text}" for name, text in VERBS.items())
    parser = StepParser(
        prog="medweave-step",
        usage="medweave-step VERB [options]   (medweave-step VERB --help lists them)",
        description=f"Run one step of a medical imaging pipeline.\n\nverbs:\n{lines}\n\n{RESEARCH_USE_ONLY}",
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
        unknown = UsageError(
            f"unknown verb '{words[0]}'.", expected=f"one of {', '.join(VERBS)}",
            do=closest(words[0], list(VERBS)) or "see `medweave-step --help`",
        )  # fmt: skip
        print(f"medweave-step: {unknown}", file=sys.stderr)
        return UsageError.exit_code
    verb = load_verb(words[0])
    try:
        parser = build_parser(verb, words[1:])
    except StepError as error:
        print(f"medweave-step {verb.name}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    parser.refuse_unknown(words[1:])
    return execute(verb, parser.parse_args(words[1:]))


if __name__ == "__main__":
    sys.exit(main())
