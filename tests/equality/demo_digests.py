"""Compare what `make demo` computed with the digests in demo.json: `python tests/equality/demo_digests.py build/demo [--write]`.

Model weights, ONNX, OpenVINO IR, masks and tables are compared byte by byte; JSON reports and DICOM objects without what changes
at each run (times, energy, memory, versions, host, UIDs). Floating point results depend on the processor's instructions and on the
number of threads, and the masks on the precision that the gate accepted by speed: each such combination has its own digests.
If there are none, file names and the fields of reports are compared with those of another combination of the same recipe.

Exit code 0: equal, or no digests to compare with; 1: something differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

DIGESTS = Path(__file__).with_name("demo.json")
EXACT = {".safetensors", ".onnx", ".xml", ".bin", ".pt", ".gz", ".csv"}
# The instructions that PyTorch, oneDNN and OpenVINO choose their programs by.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "asimd")
# Fields of reports that are other ones at each run, or on each machine. A card says how long the training took: its digest changes.
CHANGES = re.compile(
    r".*seconds.*|(.*_)?(wh|mib_per_s|per_second)|(started|ended)_at|peak_memory.*|host.*|energy|hardware|.*speed.*|reasons?|notices|files|gate"
    r"|versions|.*_version|.*_packages_version|(exported|model|parent|card|candidate)_sha256|fragment_bytes"
)
# In DICOM objects: UIDs, made of the card's digest too, dates and times; and digests in texts.
CHANGING_KINDS, HEXADECIMAL = ("UI", "DA", "TM", "DT"), re.compile(r"[0-9a-f]{12,}")
WEIGHTS = "output/accepted_model/models/"
RUN_ID = re.compile(r"demo-\d{8}-\d{6}")


class Digests(NamedTuple):
    """The digests of one demo's results.

    Attributes:
        recipe: training steps and patients.
        processor: what the last digits of floating point numbers depend on.
        precision: of the model that the gate accepted, and its runtime, if that is not OpenVINO.
        files: SHA-256 by path, of files compared byte by byte, and of reports without the fields that change.
        fields: SHA-256 of the names of each report's fields; empty for other files.
    """

    recipe: str
    processor: str
    precision: str
    files: Mapping[str, str]
    fields: Mapping[str, str]


def processor(num_threads: int) -> str:
    """Return vendor, instructions and threads."""
    import torch

    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    vendor = re.search(r"^(?:vendor_id|CPU implementer)\s*:\s*(.+)$", text, re.M)
    flags = set(text[text.find("\nflags") :].partition("\n\n")[0].split())
    names = [name for name in INSTRUCTIONS if name in flags]
    described = [platform.machine(), vendor[1] if vendor else "unknown vendor", torch.backends.cpu.get_cpu_capability()]
    return " ".join((*described, *names, f"{num_threads} threads"))


def stable(value: Any) -> Any:
    """Return a JSON document without the fields that change at each run."""
    if isinstance(value, Mapping):
        return {name: stable(inner) for name, inner in value.items() if not CHANGES.fullmatch(name)}
    return [stable(inner) for inner in value] if isinstance(value, list) else value


def dicom_sha256(path: Path) -> str:
    """Return the digest of a DICOM object, pixels included, without what changes at each run."""
    import pydicom

    lines = [
        f"{element.tag} {HEXADECIMAL.sub('*', str(element.value)) if element.tag != 0x7FE00010 else sha256(element.value)}"
        for element in pydicom.dcmread(path).iterall()
        if element.VR not in (*CHANGING_KINDS, "SQ")
    ]
    return sha256("\n".join(lines))


def field_names(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each field of a JSON document; items of a list share one path."""
    inside = (
        value.items()
        if isinstance(value, Mapping)
        else [("[]", item) for item in value]
        if isinstance(value, list)
        else ()
    )
    for name, inner in inside:
        yield f"{path}/{name}"
        yield from field_names(inner, f"{path}/{name}")


def sha256(content: bytes | str) -> str:
    return hashlib.sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()


def documents(demo: Path) -> dict[str, Path]:
    """Return the compared files, by a name that is the same in each run."""
    paths = {f"output/{path.relative_to(demo / 'output').as_posix()}": path for path in (demo / "output").rglob("*")}
    paths["phantom_report.json"] = demo / "phantom_report.json"
    run_id = RUN_ID.search((demo / "report.html").read_text(encoding="utf-8"))
    # `make demo` writes to build/demo and runs/ of one checkout.
    reports = demo.resolve().parents[1] / "runs" / (run_id[0] if run_id else "none") / "reports"
    paths |= {f"reports/{path.relative_to(reports).as_posix()}": path for path in reports.rglob("run_report.json")}
    return {re.sub(r"(tfevents)\.[^/]*", r"\1", name): path for name, path in paths.items() if path.is_file()}


def digests_of(demo: Path) -> Digests:
    """Compute the digests of a finished demo."""
    files, fields = {}, {}
    for name, path in sorted(documents(demo).items()):
        content = path.read_bytes()
        if path.suffix == ".json":
            document = json.loads(content)
            files[name] = sha256(json.dumps(stable(document), sort_keys=True))
            fields[name] = sha256("\n".join(sorted(set(field_names(document)))))
        elif path.suffix == ".dcm":
            files[name] = dicom_sha256(path)
        else:
            files[name] = sha256(content) if path.suffix in EXACT else "not compared"
    phantom = json.loads((demo / "phantom_report.json").read_text(encoding="utf-8"))
    card = json.loads(next((demo / "output").rglob("model_card.json")).read_text(encoding="utf-8"))
    runtime = card.get("runtime", "openvino")  # cards of earlier versions have none
    cases = phantom["config"]["cases"] + phantom["config"]["held_out_cases"]
    return Digests(
        recipe=f"{card['training']['steps']} steps, {cases} patients",
        processor=processor(phantom["num_threads"]),
        precision=card["precision"] + ("" if runtime == "openvino" else f" with {runtime}"),
        files=files,
        fields=fields,
    )


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return the names of what differs, is missing or is new."""
    words = [f"missing: {name}" for name in sorted(old.keys() - new.keys())]
    words += [f"new:     {name}" for name in sorted(new.keys() - old.keys())]
    return words + [f"differs: {name}" for name in sorted(old.keys() & new.keys()) if old[name] != new[name]]


def compare(known: list[Digests], demo: Digests) -> int:
    """Print how the demo differs from the recorded digests; return the exit code."""
    print(f"demo of {demo.recipe}; {demo.precision} accepted; {demo.processor}")
    of_recipe = [digests for digests in known if digests.recipe == demo.recipe]
    here = [digests for digests in of_recipe if digests.processor == demo.processor]
    same = [digests for digests in here if digests.precision == demo.precision]
    if same:
        lines = differences(same[0].files, demo.files)
        lines += [f"fields:  {line}" for line in differences(same[0].fields, demo.fields)]
        print("\n".join(lines) or "equal")
        return 1 if lines else 0
    recorded = "; ".join(f"{digests.precision}, {digests.processor}" for digests in of_recipe) or "none"
    print(f"No digests are recorded for this processor and precision. Recorded for this recipe: {recorded}.")
    if here:
        print("The gate has accepted another precision: only the weights that both have are compared.")
        lines = differences(*(common_weights(digests, here[0], demo) for digests in (here[0], demo)))
        print("\n".join(lines) or "equal")
        return 1 if lines else 0
    for other in [digests for digests in of_recipe if digests.precision == demo.precision][:1]:
        print("Only names of files and fields of reports are compared; what depends on the processor is not.")
        lines = differences(dict.fromkeys(other.files, ""), dict.fromkeys(demo.files, ""))
        lines += [f"fields:  {line}" for line in differences(other.fields, demo.fields)]
        print("\n".join(lines) or "equal")
    return 0


def common_weights(one: Digests, *both: Digests) -> dict[str, str]:
    """Return the digests of the weights that both demos have."""
    names = both[0].files.keys() & both[1].files.keys()
    return {name: one.files[name] for name in names if name.startswith(WEIGHTS)}


def read_known() -> list[Digests]:
    if not DIGESTS.exists():
        return []
    return [Digests(**fields) for fields in json.loads(DIGESTS.read_text(encoding="utf-8"))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="build/demo, after `make demo`")
    parser.add_argument("--write", action="store_true", help="record the digests replacing earlier ones")
    arguments = parser.parse_args()
    demo, known = digests_of(arguments.folder), read_known()
    if not arguments.write:
        return compare(known, demo)
    others = [
        digests
        for digests in known
        if (digests.recipe, digests.processor, digests.precision) != (demo.recipe, demo.processor, demo.precision)
    ]
    text = json.dumps([digests._asdict() for digests in (*others, demo)], indent=1) + "\n"
    DIGESTS.write_text(text, encoding="utf-8")
    print(f"recorded: {demo.recipe}, {demo.precision}, {demo.processor}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
