"""Tables: encoding by a schema, split, random under-sampling, partition, leak check, and refusals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse
import scipy.stats

from medweave_core.contracts.tables import TableColumn, TableEncoder, TableSchema
from medweave_core.errors import UserInputError
from medweave_steps.cli import main
from medweave_steps.encode_table.labels import read_labels
from medweave_steps.encode_table.leak import LEAK_AUC, leaking_columns
from medweave_steps.encode_table.split import partition_sizes, split_rows, undersample
from medweave_steps.io.cohort.prepared import PreparedFolder, open_prepared, read_contract
from medweave_steps.io.tables.encoder import EncoderFit, RowEncoder, bucket_of
from medweave_steps.io.tables.reader import TableFile
from medweave_steps.phantom.claims import COLUMN_KINDS, claims_schema
from medweave_steps.phantom.inpatients import CARE_PURPOSES, NUM_CODES, class_counts
from medweave_steps.phantom.tables import schema_text
from support.tables import LISTED, ROWS, encode, phantom, report_of

ROOT = Path(__file__).parents[3]
RATIOS = (1, 5, 10, 25, 50, 100, 500, 1000, 1500, 2000)
TOTALS = (2240, 6720, 12320, 29120, 57120, 113120, 561120, 1121120, 1681120, 2241120)


def row_numbers(prepared: PreparedFolder) -> np.ndarray:
    return np.concatenate([part.rows().row_numbers for part in prepared.cases()])


# -- encoding -----------------------------------------------------------------------------------------------------


def test_columns_are_encoded_with_statistics_of_the_training_rows_only() -> None:
    schema = TableSchema(
        columns=(
            TableColumn(name="count", kind="numeric", log=True),
            TableColumn(name="state", kind="category"),
            TableColumn(name="code", kind="hashed", buckets=4),
            TableColumn(name="local", kind="binary", positive="US"),
            TableColumn(name="name", kind="identifier"),
        )
    )
    columns = {
        "count": [0.0, np.e - 1, None],
        "state": ["NY", "CA", None],
        "code": ["A", None, "B"],
        "local": ["US", "CA", None],
    }
    batch = pyarrow.RecordBatch.from_pydict(columns)
    fit = EncoderFit(schema)
    fit.add(batch.slice(0, 1))
    fit.add(batch.slice(1, 1))  # statistics of batches are merged
    encoder = fit.encoder(classes=("a", "b"))
    assert [column.categories for column in encoder.columns] == [(), ("CA", "NY"), (), ()]
    assert encoder.features == (
        "column count", "column state=CA", "column state=NY", *(f"column code#{bucket}" for bucket in range(4)), "column local",
    )  # fmt: skip
    rows = RowEncoder(encoder)
    expected = np.zeros((3, 8))
    expected[:, 0] = (
        -1,
        1,
        0,
    )  # log(1 + x) of 0 and e - 1 are 0 and 1: mean and standard deviation 0.5; an empty cell is the mean
    expected[0, 2] = expected[1, 1] = expected[0, 7] = 1
    expected[0, 3 + bucket_of("A", 4)] = expected[2, 3 + bucket_of("B", 4)] = 1
    assert rows.encode(batch).toarray() == pytest.approx(expected)
    assert rows.unseen.total() == 0
    rows.encode(pyarrow.RecordBatch.from_pydict({**columns, "state": ["TX", "CA", "TX"]}))
    assert rows.unseen == {"state": 2}


def test_a_part_returns_the_rows_that_were_encoded(encoded: Path, claims: Path) -> None:
    prepared = open_prepared(encoded / "training_set")
    encoder = read_contract(TableEncoder, encoded / "training_set" / "table_encoder.json", where="encoder")
    table = pyarrow.csv.read_csv(claims / "claims.tsv", parse_options=pyarrow.csv.ParseOptions(delimiter="\t"))
    part = prepared.cases("train")[1]
    numbers = part.rows().row_numbers
    features = part.rows().dense(np.arange(len(numbers)), num_features=len(encoder.features))
    (column,) = (one for one in encoder.columns if one.name == "line_srvc_cnt")
    counts = np.log1p(table["line_srvc_cnt"].to_numpy()[numbers])
    place = encoder.features.index("column line_srvc_cnt")
    assert features[:, place] == pytest.approx((counts - column.mean) / column.sd, abs=1e-5)
    states = np.array(table["nppes_provider_state"].to_pylist())[numbers]
    assert (features[:, encoder.features.index("column nppes_provider_state=TX")] == (states == "TX")).all()
    assert not any("npi" in name or "name" in name or "street" in name for name in encoder.features)


def test_parquet_csv_and_tsv_give_the_same_rows(encoded: Path, claims: Path, tmp_path: Path) -> None:
    table = pyarrow.csv.read_csv(claims / "claims.tsv", parse_options=pyarrow.csv.ParseOptions(delimiter="\t"))
    pyarrow.parquet.write_table(table, tmp_path / "claims.parquet")
    pyarrow.csv.write_csv(table.slice(0, 1000), tmp_path / "first.csv")
    pyarrow.csv.write_csv(table.slice(1000), tmp_path / "second.csv")
    for place, files in enumerate((["claims.parquet"], ["first.csv", "second.csv"])):
        words = ["encode-table", "--tables", *(str(tmp_path / name) for name in files)]
        words += ["--table-schema", str(claims / "schema.yml"), "--target-list", str(claims / "exclusions.csv")]
        words += ["--ratio", "3", "--test-ratio", "1", "--nodes", "2", "--rows-per-part", "200"]
        words += ["--output", str(tmp_path / str(place)), "--run-report", str(tmp_path / "report.json")]
        assert main(words) == 0
        other = open_prepared(tmp_path / str(place) / "training_set").cohort
        assert other.data_sha256 == open_prepared(encoded / "training_set").cohort.data_sha256


def test_a_sparse_matrix_adds_columns(tmp_path: Path) -> None:
    folder = phantom(tmp_path, "inpatients", "--rows", "400")
    words = ["encode-table", "--tables", str(folder / "inpatients.csv"), "--matrix", str(folder / "codes.npz")]
    words += ["--table-schema", str(folder / "schema.yml"), "--fractions", "0.85", "0.05", "0.1"]
    words += ["--run-report", str(tmp_path / "report.json")]
    assert main([*words, "--output", str(tmp_path / "encoded")]) == 0
    prepared = open_prepared(tmp_path / "encoded" / "training_set")
    assert len(prepared.cohort.channels) == NUM_CODES
    assert len(prepared.cohort.classes) == 13  # of 400 inpatients none has the rarest class
    matrix = scipy.sparse.load_npz(folder / "codes.npz").tocsr()
    (part,) = prepared.cases("validation")
    rows = part.rows()
    own = rows.dense(np.arange(len(rows)), num_features=NUM_CODES)
    assert (own == matrix[rows.row_numbers].toarray()).all()


# -- split, under-sampling, partition -----------------------------------------------------------------------------


def test_the_ten_training_sets_have_the_published_totals() -> None:
    targets = np.concatenate([np.ones(1400, np.int16), np.zeros(2_800_000, np.int16)])
    rows = split_rows(targets, None, fractions=(0.8, 0.0, 0.2), seed=0)
    assert [int(targets[rows[name]].sum()) for name in ("train", "test")] == [1120, 280]
    tested = undersample(rows["test"], targets, ratio=1, seed=0, split="test")
    assert (len(tested), int(targets[tested].sum())) == (560, 280)
    before, minority = np.zeros(0, np.int64), None
    for ratio, total in zip(RATIOS, TOTALS, strict=True):
        drawn = undersample(rows["train"], targets, ratio=ratio, seed=0, split="train")
        assert len(drawn) == total
        assert (np.diff(drawn) > 0).all()  # without replacement
        own = drawn[targets[drawn] == 1]
        assert len(own) == 1120
        assert minority is None or (own == minority).all()
        if ratio <= 100:  # rows of a smaller ratio are among those of a larger one
            assert np.isin(before, drawn, assume_unique=True).all()
        before, minority = drawn, own
    assert not np.isin(tested, before, assume_unique=True).any()


def test_under_sampling_keeps_the_distributions_of_the_larger_class(encoded: Path, claims: Path) -> None:
    prepared = [open_prepared(encoded / name) for name in ("training_set", "inference_batches/batch-000")]
    drawn, tested = (row_numbers(one) for one in prepared)
    assert (len(drawn), len(tested)) == (len(set(drawn.tolist())), len(set(tested.tolist()))) == (160 * 4, 80)
    assert not np.intersect1d(drawn, tested).size
    table = pyarrow.csv.read_csv(claims / "claims.tsv", parse_options=pyarrow.csv.ParseOptions(delimiter="\t"))
    listed = set(pyarrow.csv.read_csv(claims / "exclusions.csv")["NPI"].to_pylist())
    is_listed = np.array([npi in listed for npi in table["npi"].to_pylist()])
    own = drawn[~is_listed[drawn]]
    for name in ("line_srvc_cnt", "average_submitted_chrg_amt"):
        values = table[name].to_numpy()
        assert scipy.stats.ks_2samp(values[~is_listed], values[own]).pvalue > 0.01
    types = np.array(table["provider_type"].to_pylist())
    names = sorted(set(types[~is_listed]))
    counts = [[int((types[rows] == name).sum()) for name in names] for rows in (np.flatnonzero(~is_listed), own)]
    assert scipy.stats.chi2_contingency(counts).pvalue > 0.01


def test_inpatients_are_divided_into_the_published_number_of_training_rows() -> None:
    counts = class_counts(116_831)
    targets = np.repeat(np.arange(len(counts), dtype=np.int16), list(counts.values()))
    rows = split_rows(targets, None, fractions=(0.85, 0.05, 0.1), seed=0)
    assert {split: len(own) for split, own in rows.items()} == {"train": 99_306, "validation": 5_842, "test": 11_683}
    assert len(np.unique(np.concatenate(list(rows.values())))) == 116_831  # nobody is in two splits
    for number, size in enumerate(counts.values()):
        for own, fraction in zip(rows.values(), (0.85, 0.05, 0.1), strict=True):
            assert abs((targets[own] == number).sum() - size * fraction) < 2
    shards = [size for (size,) in partition_sizes(len(rows["train"]), nodes=12, most=len(targets))]
    assert (sum(shards), max(shards) - min(shards)) == (99_306, 1)


def test_rows_of_one_group_stay_in_one_split() -> None:
    rng = np.random.default_rng(5)
    groups = rng.integers(0, 200, 2000)
    targets = (groups % 10 == 0).astype(np.int16)
    rows = split_rows(targets, groups, fractions=(0.7, 0.1, 0.2), seed=3)
    assert sum(map(len, rows.values())) == 2000
    own = [set(groups[numbers]) for numbers in rows.values()]
    assert [len(one & {*range(0, 200, 10)}) for one in own] == [14, 2, 4]  # 20 groups of the rare class
    assert own[0].isdisjoint(own[1] | own[2])
    assert own[1].isdisjoint(own[2])


def test_partitions_of_nodes() -> None:
    sizes = partition_sizes(100_000, nodes=10, most=5_000)
    assert [len(of_node) for of_node in sizes] == [2] * 10
    for rows, nodes, most in ((2_240, 16, 100), (561_121, 7, 5_000), (10, 10, 3)):
        sizes = partition_sizes(rows, nodes=nodes, most=most)
        assert sum(map(sum, sizes)) == rows
        assert sum(map(len, sizes)) == nodes * math.ceil(math.ceil(rows / nodes) / most)
        assert all(max(of_node) - min(of_node) <= 1 and max(of_node) <= most for of_node in sizes)


def test_every_training_row_is_written_once_in_the_parts_of_the_nodes(
    encoded: Path, claims: Path, tmp_path: Path
) -> None:
    parts = open_prepared(encoded / "training_set").cases("train")
    assert [part.case.num_rows for part in parts] == [160] * 4  # 640 rows, 2 nodes of 320, at most 200 in a part
    assert report_of(encoded)["results"]["partition"] == [[160] * 2] * 2
    for name, options in (("whole", ()), ("uneven", ("--nodes", "7", "--rows-per-part", "50"))):
        assert encode(claims, tmp_path / name, "--ratio", "3", "--test-ratio", "1", *options) == 0
    (only,) = open_prepared(tmp_path / "whole" / "training_set").cases("train")
    expected = only.rows().row_numbers.tolist()
    assert len(set(expected)) == 640
    class_of_row = dict(zip(expected, only.rows().targets.tolist(), strict=True))
    for folder in (encoded, tmp_path / "uneven"):
        blocks = [part.rows() for part in open_prepared(folder / "training_set").cases("train")]
        rows = [row for block in blocks for row in block.row_numbers.tolist()]
        assert sorted(rows) == expected  # every training row, none twice
        assert [class_of_row[row] for row in rows] == [number for block in blocks for number in block.targets.tolist()]
    assert {len(block) for block in blocks} == {45, 46}  # 7 nodes of 91 or 92 rows, in two parts each


# -- the generator ------------------------------------------------------------------------------------------------


def test_claims_have_the_columns_of_the_public_file_and_do_not_say_who_is_excluded(claims: Path) -> None:
    lines = (claims / "claims.tsv").read_text().splitlines()
    columns = lines[0].split("\t")
    assert columns == list(COLUMN_KINDS)
    assert (len(columns), columns.index("place_of_service"), len(lines)) == (29, 15, ROWS + 1)
    assert not any(word in "\n".join(lines) for word in ("excluded", "fraud", "listed"))
    keys = [tuple(line.split("\t")[place] for place in (0, 15, 16)) for line in lines[1:]]
    assert all(len(line.split("\t")) == 29 for line in lines)
    listed = {line.split(",")[7] for line in (claims / "exclusions.csv").read_text().splitlines()[1:]}
    assert sum(key[0] in listed for key in keys) == LISTED
    assert "0000000000" in listed  # entries from before there were NPIs


def test_the_schema_of_the_workflow_is_that_of_the_generator(claims: Path) -> None:
    own = (ROOT / "workflows" / "provider-fraud" / "claims-schema.yml").read_text()
    text = "".join(line for line in own.splitlines(keepends=True) if not line.startswith("#"))
    assert text == schema_text(claims_schema(synthetic=False))
    assert (claims / "schema.yml").read_text() == "synthetic: true\n" + text


def test_inpatients_have_the_published_classes() -> None:
    assert class_counts(116_697) == CARE_PURPOSES
    counts = class_counts(1_000)
    assert (sum(counts.values()), counts["cardiovascular / respiratory care"], counts["no grouping"]) == (1_000, 186, 0)


# -- leaks and bad input ------------------------------------------------------------------------------------------


def leaky(claims: Path, folder: Path, *, hashed: bool) -> Path:
    """Write the claims with a column that says which providers are excluded."""
    listed = {line.split(",")[7] for line in (claims / "exclusions.csv").read_text().splitlines()[1:]}
    lines = (claims / "claims.tsv").read_text().splitlines()
    place = lines[0].split("\t").index("hcpcs_code" if hashed else "line_srvc_cnt")
    changed = [lines[0]]
    for line in lines[1:]:
        cells = line.split("\t")
        is_listed = cells[0] in listed
        cells[place] = ("XYZ" if is_listed else "ABC") if hashed else str(5000 if is_listed else 20)
        changed.append("\t".join(cells))
    folder.mkdir()
    (folder / "claims.tsv").write_text("\n".join(changed) + "\n")
    for name in ("exclusions.csv", "schema.yml"):
        (folder / name).write_bytes((claims / name).read_bytes())
    return folder


@pytest.mark.parametrize("hashed", [True, False])
def test_a_column_that_alone_predicts_the_class_is_named(claims: Path, tmp_path: Path, hashed: bool) -> None:
    name = "hcpcs_code" if hashed else "line_srvc_cnt"
    source = leaky(claims, tmp_path / "leaky", hashed=hashed)
    assert encode(source, tmp_path / "encoded") == 0
    report = report_of(tmp_path / "encoded")
    assert report["results"]["leaking_columns"] == {name: pytest.approx(1, abs=0.02)}
    assert any(f"the column '{name}' alone predicts the class" in text for text in report["notices"])


def leaks_of(values: Mapping[str, Any], targets: np.ndarray, matrix: np.ndarray | None = None) -> dict[str, float]:
    """Return the leaks among columns whose names begin with their kinds."""
    columns = tuple(TableColumn(name=name, kind=name.split()[0]) for name in values)  # type: ignore[arg-type]
    codes = None if matrix is None else scipy.sparse.csr_matrix(matrix, dtype=np.float32)
    batch = pyarrow.RecordBatch.from_pydict({**values, "row": np.arange(len(targets))})
    fit = EncoderFit(TableSchema(columns=columns))
    fit.add(batch)
    encoder = fit.encoder(classes=("a", "b"), matrix_columns=0 if codes is None else codes.shape[1])
    rows = RowEncoder(encoder)
    features = rows.encode(batch, codes)
    leaks = leaking_columns(features, rows.empty, targets, encoder)
    assert all(leak.target in targets for leak in leaks.values())
    return {name: leak.area for name, leak in leaks.items()}


def leak(kind: str, truth: np.ndarray, rng: np.random.Generator) -> list[Any]:
    """Return a column from which the class follows."""
    size = len(truth)
    noise = rng.normal(size=size)
    columns = {
        "numeric monotone": np.where(truth, 1, -1) * np.abs(noise),
        "numeric, both tails": np.where(truth, 1 + np.abs(noise), rng.uniform(-1, 1, size)) * rng.choice([-1, 1], size),
        "numeric, one value": np.where(truth, 0.0, noise),
        "numeric, empty for one class": np.where(truth, noise, np.nan),
        "numeric, empty for the other": np.where(truth, np.nan, noise),
        "binary": np.where(truth, "Y", "N"),
        "binary, empty for one class": np.where(truth, rng.choice(["Y", "N"], size), ""),
        "category": np.where(truth, rng.choice(list("abc"), size), rng.choice(list("def"), size)),
        "category, empty for one class": np.where(truth, "", rng.choice(list("abcdefgh"), size)),
        "hashed": np.where(truth, "I21", rng.choice(["J18", "K35"], size)),
    }
    return [None if value == "" or value != value else value for value in columns[kind].tolist()]


LEAKS = (
    "numeric monotone", "numeric, both tails", "numeric, one value", "numeric, empty for one class",
    "numeric, empty for the other", "binary", "binary, empty for one class", "category", "category, empty for one class", "hashed",
)  # fmt: skip


@pytest.mark.parametrize("share", [0.5, 0.1])
@pytest.mark.parametrize("kind", LEAKS)
def test_a_leak_of_each_kind_is_found(kind: str, share: float) -> None:
    rng = np.random.default_rng(2)
    targets = (rng.permutation(1000) < 1000 * share).astype(np.int16)
    name = kind.replace(",", "")
    for truth in (targets == 1, np.sort(targets == 1)):  # in any order of the rows
        areas = leaks_of({name: leak(kind, truth, rng)}, truth.astype(np.int16))
        assert list(areas) == [name]
        assert LEAK_AUC <= areas[name] <= 1


def test_a_leaking_column_of_the_matrix_has_an_area_of_at_most_1() -> None:
    targets = (np.arange(4999) % 2).astype(np.int16)
    codes = np.random.default_rng(1).integers(0, 2, (4999, 3))
    codes[:, 1] = targets
    assert leaks_of({}, targets, codes) == {"column 1 of the matrix": 1.0}


@pytest.mark.parametrize("rows", [20, 21, 40, 100, 400])
def test_columns_without_information_are_no_leak_however_few_rows_there_are(rows: int) -> None:
    rng = np.random.default_rng(rows)
    for _ in range(20):
        targets = (rng.permutation(rows) < max(10, rows // 10)).astype(np.int16)
        numbers = np.where(rng.random(rows) < 0.2, np.nan, rng.normal(size=rows)).tolist()
        values = {
            "numeric": [None if value != value else value for value in numbers],
            "numeric count": rng.poisson(0.5, rows).astype(float).tolist(),
            "category": rng.choice(np.array(["A", "B", "C", None]), rows).tolist(),
            "category of pairs": (np.arange(rows) // 2).astype(str).tolist(),
            "category of rows": np.arange(rows).astype(str).tolist(),
            "hashed": rng.integers(0, 50, rows).astype(str).tolist(),
            "binary": rng.choice(np.array(["Y", "N", None]), rows).tolist(),
            "numeric empty": pyarrow.nulls(rows, pyarrow.float64()),
            "category empty": pyarrow.nulls(rows, pyarrow.string()),
            "binary empty": pyarrow.nulls(rows, pyarrow.string()),
        }
        assert leaks_of(values, targets, rng.integers(0, 2, (rows, 5))) == {}


def test_ordinary_columns_are_no_leak(encoded: Path) -> None:
    assert report_of(encoded)["results"]["leaking_columns"] == {}


def test_groups_in_training_and_test_are_reported_and_kept_apart_on_request(claims: Path, tmp_path: Path) -> None:
    for split_by in ("row", "group"):
        assert encode(claims, tmp_path / split_by, "--split-by", split_by) == 0
        has_notice = any(
            "groups have rows in training and test" in text for text in report_of(tmp_path / split_by)["notices"]
        )
        assert has_notice == (split_by == "row")


def changed_schema(claims: Path, folder: Path, old: str, new: str) -> Path:
    text = (claims / "schema.yml").read_text()
    assert old in text
    path = folder / "schema.yml"
    path.write_text(text.replace(old, new))
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("place_of_service, kind: category", "place_of_service, kind: numeric", "'place_of_service' is not of the declared kind"),
        ("place_of_service, kind: category", "place_of_service, kind: binary", "'place_of_service' is not of the declared kind"),
        ("  - {name: place_of_service, kind: category}\n", "", "does not declare the column 'place_of_service'"),
        ("name: place_of_service", "name: place", "the table has no column 'place'"),
        ("column: npi,", "column: provider_type,", "the schema of the table cannot be used"),
        ("list_column: NPI", "list_column: NPIX", "the target list has no column 'NPIX'"),
        ("list_column: NPI", "list_column: STATE", "the table has only one class"),
        ("columns:\n", "columns:\n  - {name: fraud, kind: target}\n", "the schema of the table cannot be used"),
    ],
)  # fmt: skip
def test_schemas_that_do_not_fit_are_refused(
    claims: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    assert encode(claims, tmp_path / "encoded", schema=changed_schema(claims, tmp_path, old, new)) == 65
    error = capsys.readouterr().err
    assert message in error
    assert "9000000" not in error  # no identifier of a row
    assert not (tmp_path / "encoded").exists()


def test_a_table_without_its_target_column_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.csv").write_text("age\n3\n4\n")
    (tmp_path / "schema.yml").write_text("columns: [{name: age, kind: numeric}, {name: outcome, kind: target}]\n")
    words = ["encode-table", "--tables", str(tmp_path / "rows.csv"), "--table-schema", str(tmp_path / "schema.yml")]
    assert main([*words, "--output", str(tmp_path / "encoded"), "--run-report", str(tmp_path / "report.json")]) == 65
    assert "the table has no target column 'outcome'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--ratio", "1000"), "needs more rows than the larger class has"),
        (("--nodes", "5000"), "there are more nodes than training rows"),
    ],
)
def test_sizes_beyond_the_rows_are_refused(
    claims: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert encode(claims, tmp_path / "encoded", *options) == 65
    assert message in capsys.readouterr().err


TABLE = "age,sex,outcome\n" + "".join(
    f"{20 + row},{'FM'[row % 2]},{('well', 'sick')[row % 3 // 2]}\n" for row in range(12)
)
SCHEMA = (
    "columns: [{name: age, kind: numeric, log: true}, {name: sex, kind: category}, {name: outcome, kind: target}]\n"
)


@pytest.mark.parametrize(
    ("table", "schema", "options", "message"),
    [
        (TABLE.replace("20,", "-2,"), SCHEMA, (), "seen:     a negative or infinite number"),
        (TABLE.replace("20,", "inf,"), SCHEMA.replace(", log: true", ""), (), "seen:     an infinite number"),
        (TABLE.replace("20,F,well", "20,F,dead"), SCHEMA, ("--ratio", "1"), "under-sampling needs two classes"),
        (TABLE.replace("age,sex", "sex,sex"), SCHEMA, (), "the table has a column twice"),
        (TABLE.replace("20,F,well", "20,F"), SCHEMA, (), "Expected 3 columns, got 2"),
        ("", SCHEMA, (), "the table cannot be read"),
        (TABLE, SCHEMA.replace("numeric, log: true", "group").replace("category", "group"), (), "several columns of kind group"),
        (TABLE, SCHEMA, ("--matrix", "text.npz"), "the matrix cannot be read"),
        (TABLE, SCHEMA, ("--matrix", "missing.npz"), "the matrix cannot be read"),
        (TABLE, SCHEMA, ("--matrix", "counts.npz"), "the matrix is not binary"),
        (TABLE, SCHEMA, ("--matrix", "short.npz"), "table and matrix have different rows"),
    ],
)  # fmt: skip
def test_tables_and_matrices_that_cannot_be_used_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str, schema: str, options: tuple[str, ...], message: str
) -> None:
    (tmp_path / "table.csv").write_text(table)
    (tmp_path / "schema.yml").write_text(schema)
    (tmp_path / "text.npz").write_text(table)
    for name, rows, value in (("counts.npz", 12, 2), ("short.npz", 11, 1)):
        scipy.sparse.save_npz(tmp_path / name, scipy.sparse.csr_matrix(np.full((rows, 2), value)))
    words = ["encode-table", "--cohort", str(tmp_path), "--tables", "table.csv", "--output", str(tmp_path / "encoded")]
    words += ["--table-schema", str(tmp_path / "schema.yml"), "--run-report", str(tmp_path / "report.json"), *options]
    assert main(words) == 65
    assert message in capsys.readouterr().err
    assert not (tmp_path / "encoded").exists()


@pytest.mark.parametrize("cells", [["3", "four"], [[3], [4]]])
def test_a_parquet_column_of_another_type_is_refused(tmp_path: Path, cells: list[Any]) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"name": ["a", "b"], "age": cells}), tmp_path / "table.parquet")
    with pytest.raises(UserInputError, match="the column 'age' is not of the declared kind") as caught:
        list(TableFile(path=tmp_path / "table.parquet").batches({"name": "text", "age": "number"}))
    assert "four" not in str(caught.value)


@pytest.mark.parametrize("name", ["table.parquet", "table.xlsx"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TABLE)
    with pytest.raises(UserInputError, match="the table cannot be read"):
        TableFile(path=tmp_path / name).column_names()


def test_a_class_that_the_model_does_not_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(TABLE.replace("20,F,well", "20,F,dead"))
    schema = TableSchema(columns=(TableColumn(name="outcome", kind="target"),))
    with pytest.raises(UserInputError, match="the table has a class that the model does not have") as caught:
        read_labels([TableFile(path=tmp_path / "table.csv")], schema, target_list=None, classes=("sick", "well"))
    assert "dead" not in str(caught.value), "no cell of the table is in an error"
