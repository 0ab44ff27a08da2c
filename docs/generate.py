"""Writes the generated pages: the JSON Schemas of all contracts and the reference of the step verbs.

A test runs this into a temporary folder and compares, so that the pages cannot drift: `python docs/generate.py [FOLDER]`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from medweave_steps import cli
from medweave_steps.contracts.schema import PUBLISHED, schema_of

ROOT = Path(__file__).resolve().parents[1]
SCHEMAS = Path("steps/medweave_steps/contracts/schemas")
REFERENCE = Path("docs/reference/steps.md")


def reference_of_steps() -> str:
    """Markdown: every verb's help, as a terminal of 110 columns shows it."""
    os.environ["COLUMNS"] = "110"
    parts = [
        "# The step commands\n\nGenerated from `medweave-step VERB --help` by `make docs`. Exit codes: 2 usage, 65 bad data, "
        "69 a library is missing, 70 internal, 74 reading or writing failed, 75 trying again may help, 130 and 143 for INT and "
        "TERM. The default of `--num-threads` is the number of processors of the machine.\n"
    ]
    for name, summary in cli.VERBS.items():
        shown = cli.build_parser(cli.load_verb(name)).format_help()
        lines = [line for line in shown.splitlines() if "here)" not in line or "processors" in line]
        text = "\n".join(line.rstrip() for line in lines)
        parts.append(f"## {name}\n\n{summary[0].upper()}{summary[1:]}.\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def pages() -> dict[Path, str]:
    """Path below the repository to text, for every generated file."""
    schemas = {
        SCHEMAS / f"{name}.json": json.dumps(schema_of(name), indent=2, ensure_ascii=False) + "\n" for name in PUBLISHED
    }
    return schemas | {REFERENCE: reference_of_steps()}


def main() -> int:
    """Writes all pages below a folder; the repository by default."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    for path, text in pages().items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(text, encoding="utf-8")
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
