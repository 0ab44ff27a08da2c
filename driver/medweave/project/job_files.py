"""Job files: the inputs of a workflow, checked against its CWL document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from medweave.project.workflows import Pipeline
from medweave_core.documents.closest_match import closest
from medweave_core.documents.cwl_model import Process
from medweave_core.documents.cwl_reader import CwlReader
from medweave_core.documents.field_errors import fault_at
from medweave_core.documents.file_locations import path_of, place_key
from medweave_core.documents.job_values import missing_inputs, mistyped_inputs, unknown_inputs
from medweave_core.documents.line_numbers import FieldPath, shown
from medweave_core.errors import UsageError

PLACES = ("path", "location", "contents", "listing")  # one of these gives the place or content of a file or folder
FILE_KEYS = {
    "File": (
        "class", "path", "location", "basename", "contents", "format", "checksum", "size", "secondaryFiles", "dirname", "nameroot",
        "nameext",
    ),
    "Directory": ("class", "path", "location", "basename", "listing"),
}  # fmt: skip
# Extensions of the file formats that medical imaging pipelines read and write, by EDAM identifier.
EXTENSIONS = {
    "format_3464": (".json",),
    "format_3752": (".csv",),
    "format_3475": (".tsv",),
    "format_3548": (".dcm",),
    "format_2331": (".html", ".htm"),
    "format_4001": (".nii", ".nii.gz"),
    "format_3604": (".svg",),
    "format_3603": (".png",),
    "format_3750": (".yml", ".yaml"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFault:
    """An error in the values of a job file, in the parts of an error message.

    Attributes:
        rule: whether the input is wrong or missing, or its value.
        input: name of the input; empty where the workflow has none of that name.
        field: place in the job file; empty for the whole file.
        hides_files: the type or the keys of the value are wrong, so that its files cannot be checked.
    """

    rule: Literal["job-input", "job-type"]
    input: str
    field: FieldPath
    what: str
    seen: str
    expected: str
    fix: str
    hides_files: bool = False


def default_job(pipeline: Pipeline) -> Path:
    """Return the demo's job file of a workflow.

    Raises:
        UsageError: the workflow has no demo, so `--job` is required.
    """
    path = pipeline.path.parent / "jobs" / f"demo-{pipeline.path.stem}.yml"
    if not path.is_file():
        raise UsageError(
            f"{shown(pipeline.path)}: no job file given, and the workflow has no demo job file.",
            seen=f"no {shown(path)}",
            expected="--job FILE with the inputs of the workflow",
            do="add --job my-job.yml",
        )
    return path


def read_job(path: Path, pipeline: Pipeline, reader: CwlReader | None = None) -> dict[str, Any]:
    """Return the inputs in a job file.

    Raises:
        UserInputError: the file is not YAML, or names an input that the workflow does not have.
    """
    document: dict[str, Any] = (reader or CwlReader()).mapping(path, "job file").data
    unknown = sorted(set(document) - pipeline.inputs)
    if unknown:
        raise fault_at(
            path,
            (unknown[0],),
            f"{shown(pipeline.path)} has no such input.",
            seen=f"'{unknown[0]}'",
            expected=f"one of {', '.join(sorted(pipeline.inputs))}",
            do=closest(unknown[0], list(pipeline.inputs)) or "correct the input name",
        )
    return document


def check_path_at_site(path: Path, job: Mapping[str, Any], name: str, workdir: str) -> None:
    """Check that a path in a job file, or each path of a list, is below the folder of that input at the site.

    StreamFlow takes the path relative to the job file's folder and prepends `workdir`.

    Raises:
        UserInputError: the path is absolute, goes up, or is missing.
    """
    values = job.get(name)
    for value in values if isinstance(values, list) else [values]:
        text = value.get(place_key(value)) if isinstance(value, Mapping) else None
        pure = PurePosixPath((path_of(value) if isinstance(value, Mapping) else None) or "/")
        if pure.is_absolute() or ".." in pure.parts:
            raise fault_at(
                path,
                (name,),
                "this input is stored at a site, so its path must be inside the site's folder for the input.",
                seen=f"path: {text}" if text else "no path",
                expected=f"a path inside {workdir}, without '..'",
                do=f"write a path inside {workdir}, or remove inputs.{name} from the site file",
            )


def faults_of_job(values: Mapping[str, Any], workflow: Process) -> Iterator[JobFault]:
    """Yield the errors in the values of a job file, without access to the files that they name.

    Args:
        values: content of the job file.
    """
    name = workflow.path.name
    unknown = [*unknown_inputs(values, workflow.fields, name)]
    missing = [] if unknown else [*missing_inputs(values, workflow.fields, name)]  # a misspelt input is reported once
    mistyped = [*mistyped_inputs(values, workflow.fields)]
    rules: tuple[tuple[Literal["job-input", "job-type"], list[Any]], ...] = (
        ("job-input", [*unknown, *missing]),
        ("job-type", mistyped),
    )
    for rule, misfits in rules:
        for misfit in misfits:
            yield JobFault(
                rule=rule, input=misfit.about, field=misfit.field, what=misfit.what, seen=misfit.seen, expected=misfit.expected,
                fix=misfit.fix, hides_files=rule == "job-type",
            )  # fmt: skip
    mistyped_names = {misfit.about for misfit in mistyped}
    for key, parameter in workflow.inputs.items():
        if key in values and key not in mistyped_names:
            wrong_keys = [*_faults_of_keys(key, values[key])]
            yield from wrong_keys or _faults_of_format(key, values[key], parameter.formats)


def first_fault_of_job(values: Mapping[str, Any], workflow: Process) -> JobFault | None:
    """Return the first error in the values of a job file that keeps its workflow from running; None if all are valid."""
    return next(faults_of_job(values, workflow), None)


def files_in(value: Any, field: FieldPath = ()) -> Iterator[tuple[FieldPath, Mapping[str, Any]]]:
    """Yield the Files and Directories in a value, each with its place."""
    if isinstance(value, Mapping):
        if value.get("class") in ("File", "Directory"):
            yield field, value
        for key, item in value.items():
            yield from files_in(item, (*field, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from files_in(item, (*field, number))


def _faults_of_format(name: str, value: Any, formats: tuple[str, ...]) -> Iterator[JobFault]:
    identifiers = [full.rpartition("/")[2] for full in formats]
    extensions = [extension for identifier in identifiers for extension in EXTENSIONS.get(identifier, ())]
    is_known = bool(formats) and all(identifier in EXTENSIONS for identifier in identifiers)
    for inside, file in files_in(value):
        declared, path = file.get("format"), path_of(file) or ""
        if declared:
            is_wrong = bool(formats) and str(declared) not in formats and not str(declared).startswith("edam:")
        else:
            is_wrong = is_known and bool(Path(path).suffix) and not path.endswith(tuple(extensions))
        if is_wrong:
            yield JobFault(
                rule="job-type",
                input=name,
                field=(name, *inside),
                what=f"the file format does not match the format of '{name}'.",
                seen=str(declared or path),
                expected=f"{' or '.join(formats)}{' (' + ', '.join(extensions) + ')' if extensions else ''}",
                fix="use a file of the expected format",
            )


def _faults_of_keys(name: str, value: Any) -> Iterator[JobFault]:
    """Yield a fault for each File or Directory with keys that CWL does not have, or without a path or content."""
    for inside, file in files_in(value):
        known = FILE_KEYS[file["class"]]
        unknown = [key for key in file if key not in known and ":" not in str(key)]  # a prefix marks an extension
        for key in unknown:
            yield JobFault(
                rule="job-type",
                input=name,
                field=(name, *inside, key),
                what=f"a {file['class']} has no key '{key}'.",
                seen=str(key),
                expected=f"one of {', '.join(known)}",
                fix=closest(str(key), [word for word in known if word not in file]) or "remove the key",
                hides_files=True,
            )
        if not unknown and not any(file.get(key) is not None for key in PLACES):
            yield JobFault(
                rule="job-type", input=name, field=(name, *inside), what=f"this {file['class']} has no path.",
                seen=", ".join(map(str, file)), expected="path: …, relative to the folder of this file", fix="add 'path:'",
                hides_files=True,
            )  # fmt: skip
