"""Training and evaluation on rows of a table: numerics of local SGD, files, the chain of verbs, and refusals."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

from medweave_core.errors import UserInputError
from medweave_steps.cli import build_parser, load_verb, main
from medweave_steps.io.cohort.prepared import open_prepared
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.io.model.folder import read_card
from medweave_steps.io.model.network import build_network
from medweave_steps.networks.layer_stack import LayerStack
from medweave_steps.phantom.inpatients import NUM_CODES
from medweave_steps.report import parallel_sgd
from medweave_steps.runtime.options import read_options
from medweave_steps.stats.training_times import rows_of_reports
from medweave_steps.tasks import task_named
from medweave_steps.tasks.classification.cases import targets_of_cohort, usable_cases
from medweave_steps.tasks.classification.table_sampler import TableSampler
from medweave_steps.train.network import architecture
from medweave_steps.training.data.batch import Batch
from medweave_steps.training.data.epoch_order import EpochOrder
from medweave_steps.training.distributed.average import averaged
from medweave_steps.training.strategies import TrainingFacts
from medweave_steps.training.strategies.local_sgd import LocalSgdOptions, LocalSgdStrategy
from support.tables import ROWS, encode, report_of, train
from support.weights import assert_equal_weights, weights

ROOT = Path(__file__).parents[3]
BATCH, RATE = 128, 0.01


@pytest.fixture(scope="module")
def trained(encoded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tmp_path_factory.mktemp("trained") / "model"
    assert train(encoded / "training_set", model, "--epochs", "3", "--strategy", "local-sgd", "--ranks", "1") == 0
    return model


def sampler_of(folder: Path, *, batch_size: int = BATCH, seed: int = 0) -> TableSampler:
    prepared = open_prepared(folder)
    return TableSampler(
        prepared.cases("train"), targets=targets_of_cohort(prepared.cohort), num_features=len(prepared.cohort.channels),
        batch_size=batch_size, seed=seed,
    )  # fmt: skip


def mlp(features: int, *, dropout: float = 0.2) -> Any:
    layers = [
        {"kind": "dense", "units": 100}, {"kind": "activation", "function": "relu"}, {"kind": "dropout", "rate": dropout},
        {"kind": "dense", "units": "outputs"},
    ]  # fmt: skip
    arguments = {"in_channels": features, "outputs": 2, "input_shape": [1, 1, 1], "layers": layers}
    torch.manual_seed(0)
    return build_network({"class": "medweave_steps.networks.layer_stack.LayerStack", "arguments": arguments})


def step(network: Any, batch: Any, rate: float = RATE) -> None:
    """Take a step of plain gradient descent."""
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, fused=True)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(
        network(torch.from_numpy(batch.image_BCIJK)), torch.from_numpy(batch.label_BCIJK)
    )
    loss.backward()
    optimizer.step()


# -- numerics -----------------------------------------------------------------------------------------------------


def test_one_worker_trains_exactly_as_plain_mini_batch_sgd(encoded: Path, trained: Path) -> None:
    sampler = sampler_of(encoded / "training_set")
    network = mlp(sampler.rows.num_features).train()
    for number in range(3 * 5):  # 640 rows are five batches of 128
        step(network, sampler.batch(number))
    own = weights(trained)
    assert set(own) == set(network.state_dict())
    for name, value in network.state_dict().items():
        assert (own[name] == value.numpy()).all(), name


@pytest.mark.slow
def test_single_and_local_sgd_with_one_rank_have_equal_weights(encoded: Path, trained: Path, tmp_path: Path) -> None:
    assert train(encoded / "training_set", tmp_path / "model", "--epochs", "3") == 0
    assert_equal_weights(trained, tmp_path / "model")


def test_the_average_of_one_step_on_equal_shares_is_the_step_on_all_rows_and_the_start_plus_the_mean_change(
    encoded: Path,
) -> None:
    """Both are properties of the same average: mean(theta_k) = theta_0 + mean(theta_k - theta_0). Ranks send whole weights only."""
    sampler = sampler_of(encoded / "training_set", batch_size=640)
    whole = mlp(sampler.rows.num_features, dropout=0.0)
    start = {name: value.clone() for name, value in whole.state_dict().items()}
    step(whole, sampler.batch(0), rate=1.0)
    states = []
    for rank in range(4):
        network = mlp(sampler.rows.num_features, dropout=0.0)
        batch = sampler.batch(0, rank=rank, world_size=4)
        assert len(batch.case_ids) == 160
        step(network, batch, rate=1.0)
        states.append(network.state_dict())
    mean = averaged(states, [160] * 4)
    deltas = averaged([{name: state[name] - start[name] for name in start} for state in states], [160] * 4)
    for name, value in whole.state_dict().items():
        assert float((mean[name] - value).abs().max()) <= 1e-6
        assert float((mean[name] - (start[name] + deltas[name])).abs().max()) <= 1e-7


def test_ranks_share_every_row_of_an_epoch_once(encoded: Path) -> None:
    sampler = sampler_of(encoded / "training_set")
    truth = np.zeros(2)
    for number in range(5):
        for rank in range(3):
            truth += sampler.batch(number, rank=rank, world_size=3).label_BCIJK.sum(axis=0)
    assert truth.tolist() == [160, 480]
    assert [sampler.num_counted(5, rank=rank, world_size=3) for rank in range(3)] == [215, 215, 210]


class TwoRanks:
    """A group of two ranks that have the same of everything."""

    rank, world_size = 0, 2

    def gather(self, value: Any) -> list[Any]:
        return [value, value]


@pytest.mark.parametrize("rows", [2_240, 29_120])
def test_the_bytes_of_an_epoch_do_not_depend_on_the_rows(rows: int, trained: Path) -> None:
    own = weights(trained)
    features = own["layers.1.weight"].shape[1]
    parameters = sum(value.size for value in own.values())
    assert parameters == 100 * features + 302
    steps = -(-rows // BATCH)
    facts = TrainingFacts(
        steps=10 * steps, epoch_steps=steps, epochs=10, ranks=2, batch_size=BATCH, patch_shape=(1, 1, 1), accumulate=1,
        recomputes=False, clips_gradients=False, num_cases=rows, num_channels=features,
    )  # fmt: skip
    strategy = LocalSgdStrategy(options=LocalSgdOptions(), training=facts, group=TwoRanks(), device=torch.device("cpu"))
    stepper = SimpleNamespace(
        network=mlp(features), begin=lambda parts, weights: 0.0, loss_of=lambda batch: None, backward=lambda loss, weight: 0.5,
        apply=lambda: None, learning_rate=RATE,
    )  # fmt: skip
    batch = Batch(
        image_BCIJK=np.zeros((4, features, 1, 1, 1), np.float32), label_BCIJK=np.zeros((4, 2), np.float32),
        case_ids=("row",) * 4, num_together=8,
    )  # fmt: skip
    results = [strategy.take_step(stepper, batch, step=number, flags=(0.0, 0.0)) for number in range(2 * steps)]
    synchronized = [number for number, result in enumerate(results) if result is not None]
    assert synchronized == [steps - 1, 2 * steps - 1]  # once per epoch
    sent = [result.num_bytes for result in results if result is not None]
    assert sent == [2 * 4 * parameters] * 2
    assert parallel_sgd.bytes_per_epoch(2, parameters) == 2 * sent[0]  # the paper's master sends the weights back


def test_no_file_is_opened_after_the_rows_were_mapped(
    claims: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "claims"
    source.mkdir()
    for path in claims.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    assert encode(source, tmp_path / "encoded", "--ratio", "1", "--rows-per-part", "100") == 0
    for path in source.iterdir():
        path.unlink()
    before = digests(tmp_path / "encoded")
    opened = record_opened_files(monkeypatch)
    sampler = sampler_of(tmp_path / "encoded" / "training_set", batch_size=64)
    arrays = [path for path in before if path.suffix == ".npy" and "training_set" in path.parts]
    assert len(arrays) == 6 * 4  # six arrays of each of four parts
    assert set(opened) == {*arrays, tmp_path / "encoded" / "training_set" / "cohort.json"}
    opened.clear()
    batches = [sampler.batch(number) for number in range(3 * 5)]
    assert not opened
    monkeypatch.undo()
    assert before == digests(tmp_path / "encoded")
    shutil.rmtree(tmp_path / "encoded")
    for number, batch in enumerate(batches):
        assert (sampler.batch(number).image_BCIJK == batch.image_BCIJK).all()


def digests(folder: Path) -> dict[Path, str]:
    """Return the SHA-256 of every file below a folder."""
    return {path: sha256_of_file(path) for path in folder.rglob("*") if path.is_file()}


def record_opened_files(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the list to which the path of every file is added that Python code opens from now on."""
    opened: list[Path] = []

    def recorded(original: Callable[..., Any], file: Any, *words: Any, **options: Any) -> Any:
        if isinstance(file, str | os.PathLike):
            opened.append(Path(file))
        return original(file, *words, **options)

    for module, name in ((builtins, "open"), (io, "open"), (os, "open"), (np, "load"), (np, "memmap")):
        monkeypatch.setattr(module, name, functools.partial(recorded, getattr(module, name)))
    return opened


def test_the_order_of_an_epoch_is_drawn_once_and_is_the_same_as_before() -> None:
    order = EpochOrder(num_cases=10, batch_size=4, seed=7)
    for number in range(6):
        epoch, place = divmod(number, 3)
        expected = np.random.default_rng((7, epoch)).permutation(10)[4 * place : 4 * place + 4]
        assert order.cases_of(number) == expected.tolist()
        assert order.size_of(number) == len(expected)


# -- networks -----------------------------------------------------------------------------------------------------

CARE_PURPOSE = {
    (16, 16): 238_526, (32, 8): 476_270, (32, 16): 484_718, (64, 4): 950_222, (64, 8): 966_862, (64, 16): 1_000_142,
    (128, 2): 1_891_982, (128, 4): 1_925_006, (128, 8): 1_991_054, (128, 16): 2_123_150, (256, 2): 3_816_718,
    (256, 4): 3_948_302, (256, 8): 4_211_470, (256, 16): 4_737_806, (512, 2): 7_764_494, (512, 4): 8_289_806,
    (512, 8): 9_340_430, (512, 16): 11_441_678, (1024, 2): 16_053_262, (1024, 4): 18_152_462, (1024, 8): 22_350_862,
    (2048, 2): 34_203_662, (2048, 4): 42_596_366, (4096, 2): 76_795_918,
}  # fmt: skip
"""Parameters of the 24 networks of García Henao et al. 2020, table 4, by units and layers."""


def test_layer_stacks_have_the_parameters_of_the_care_purpose_networks() -> None:
    for (units, number), parameters in CARE_PURPOSE.items():
        assert parameters_of_mlp(NUM_CODES, units=units, hidden_layers=number) == parameters
    assert parameters_of_mlp(10_833) == 6_342_158, "the scalability model of the paper: four layers of 512 units"
    assert parameters_of_layers(NUM_CODES, 2048, 1024, 1024) == 33_140_750, "the example of the paper's API"


def parameters_of_layers(features: int, *units: int) -> int:
    """Return the parameters of a layer stack of dense layers for 14 classes."""
    dense = [{"kind": "dense", "units": number} for number in (*units, "outputs")]
    arguments = {"in_channels": features, "outputs": 14, "input_shape": [1, 1, 1], "layers": dense}
    with torch.device("meta"):  # 126 MiB of weights otherwise
        network = build_network({"class": "medweave_steps.networks.layer_stack.LayerStack", "arguments": arguments})
    return sum(weight.numel() for weight in network.parameters())


def parameters_of_mlp(features: int, **options: int) -> int:
    """Return the parameters of --network mlp with 14 classes, for options of its own."""
    words = [
        "--training-set",
        "t",
        "--output",
        "o",
        "--task",
        "classification",
        "--network",
        "mlp",
        "--patch-shape",
        "1",
        "1",
        "1",
    ]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    verb = load_verb("train")
    config = read_options(verb.config, build_parser(verb).parse_args(words))
    with torch.device("meta"):
        network = build_network(architecture(config, channels=features, out_channels=14))
    assert isinstance(network, LayerStack)
    return sum(weight.numel() for weight in network.parameters())


@pytest.mark.parametrize("workers", [4, 6, 8, 10, 12])
def test_workers_share_batches_that_they_do_not_divide(encoded: Path, workers: int) -> None:
    sampler = sampler_of(encoded / "training_set", batch_size=250)  # 640 rows: two batches of 250 and one of 140
    for number, size in enumerate((250, 250, 140)):
        shares = [len(sampler.batch(number, rank=rank, world_size=workers).case_ids) for rank in range(workers)]
        assert (sum(shares), max(shares) - min(shares)) == (size, 1 if size % workers else 0)


def test_the_run_report_of_a_training_is_a_row_of_measurements(trained: Path) -> None:
    (row,) = rows_of_reports([Path(f"{trained}.json")])
    training = report_of(trained)["results"]["training"]
    assert row == {
        "ratio": "1:3", "rows": "640", "ranks": "1", "strategy": "local-sgd", "seed": "0", "seconds": str(training["seconds"]),
        "step_seconds": str(training["step_seconds"]),
    }  # fmt: skip


# -- modelled times -----------------------------------------------------------------------------------------------


def test_modelled_times_have_the_order_of_the_published_ones() -> None:
    times = {
        nodes: [parallel_sgd.modelled_seconds(nodes, rows) for rows in parallel_sgd.ROWS]
        for nodes in parallel_sgd.NODES
    }
    assert all((np.diff(own) > 0).all() for own in times.values())
    assert [parallel_sgd.fastest_nodes(rows) for rows in parallel_sgd.ROWS] == [4, 4, 4, 4, 4, 8, 16, 16, 16, 16]
    assert max(times, key=lambda nodes: times[nodes][0]) == 16
    assert [times[nodes][0] for nodes in (8, 16)] == pytest.approx([36.74, 71.06], abs=0.5)


def test_the_page_has_the_modelled_times() -> None:
    assert parallel_sgd.time_table() in (ROOT / "docs" / "explanation" / "time-of-parallel-sgd.md").read_text()


# -- the chain of verbs -------------------------------------------------------------------------------------------


def run(verb: str, folder: Path, name: str, *words: str) -> int:
    return main(
        [
            verb,
            *words,
            "--output",
            str(folder / name),
            "--run-report",
            str(folder / f"{name}.json"),
            "--num-threads",
            "1",
        ]
    )


def test_rows_are_classified_evaluated_and_reported(encoded: Path, trained: Path, tmp_path: Path) -> None:
    card = read_card(trained)
    assert (card.task, card.input.modality) == (
        "Classification into 2 classes (excluded, not-excluded) in tables",
        "TABLE",
    )
    assert card.training["num_training_cases_by_class"] == {"excluded": 160, "not-excluded": 480}
    assert (card.training["best_step"], card.training["num_validation_cases"]) == (15, 0)
    batch = str(encoded / "inference_batches" / "batch-000")
    assert (
        run("classify", tmp_path, "classes", "--model", str(trained), "--case-batch", batch, "--backend", "torch") == 0
    )
    lines = (tmp_path / "classes" / "classifications.csv").read_text().splitlines()
    rows = open_prepared(Path(batch)).cases()[0].rows()
    assert [line.split(",")[0] for line in lines[1:]] == [f"row-{number:09d}" for number in rows.row_numbers]
    network = mlp(card.input.channels).eval()
    network.load_state_dict({name: torch.from_numpy(value) for name, value in weights(trained).items()})
    features = rows.dense(np.arange(len(rows)), num_features=card.input.channels)
    with torch.inference_mode():
        expected = torch.softmax(network(torch.from_numpy(features)[:, :, None, None, None]), dim=1).numpy()
    assert [float(line.split(",")[2]) for line in lines[1:]] == pytest.approx(expected[:, 0].tolist(), abs=1e-5)
    words = ["--classifications", str(tmp_path / "classes"), "--case-batches", batch]
    fitted = ["--training-set", str(encoded / "training_set"), "--bootstrap-resamples", "100"]
    assert run("evaluate", tmp_path, "metrics", *words, *fitted) == 0
    metrics = json.loads((tmp_path / "metrics" / "metrics.json").read_text())
    assert (metrics["cases"], metrics["synthetic"], metrics["baseline"]["rule"]) == (80, True, "logistic regression")
    assert metrics["micro_f1"] == metrics["accuracy"]
    assert metrics["baseline"]["macro_f1"] > 0.55
    assert metrics["patients"] == len(set(rows.groups.tolist())) < 80
    assert all(one["f1"] is not None and one["average_precision"] for one in metrics["by_class"])
    log = f"{trained}_log"
    of_training = ["--training-log", log, "--run-reports", f"{trained}.json", str(tmp_path / "classes.json")]
    assert run("report", tmp_path, "report", "--evaluation", str(tmp_path / "metrics"), *words, *of_training) == 0
    html = (tmp_path / "report" / "fragment.html").read_text()
    assert "80 rows" in html
    assert "Worst cases" not in html


def test_the_encoder_of_the_model_is_applied_to_other_rows(
    claims: Path, encoded: Path, trained: Path, tmp_path: Path
) -> None:
    header, *lines = (claims / "claims.tsv").read_text().splitlines()
    place = header.split("\t").index("nppes_provider_state")
    cells = [line.split("\t") for line in lines[:50]]
    for row in cells[:3]:
        row[place] = "XX"
    (tmp_path / "raw.tsv").write_text("\n".join([header, *("\t".join(row) for row in cells)]) + "\n")
    assert run("encode-table", tmp_path, "raw", "--tables", str(tmp_path / "raw.tsv"), "--model", str(trained)) == 0
    report = report_of(tmp_path / "raw")
    assert report["results"]["unseen_categories"] == {"nppes_provider_state": 3}
    prepared = open_prepared(tmp_path / "raw" / "inference_batches" / "batch-000")
    (part,) = prepared.cases()
    assert (part.rows().targets == -1).all()
    known = {
        int(number): (case.rows(), row)
        for case in open_prepared(encoded / "training_set").cases()
        for row, number in enumerate(case.rows().row_numbers)
    }
    width = len(prepared.cohort.channels)
    shared = [number for number in range(3, 50) if number in known]
    assert shared
    for number in shared:  # as when the encoder was fitted
        block, row = known[number]
        assert (
            part.rows().dense(np.array([number]), num_features=width)
            == block.dense(np.array([row]), num_features=width)
        ).all()
    words = ("--model", str(trained), "--case-batch", str(prepared.folder), "--backend", "torch")
    assert run("classify", tmp_path, "classes", *words) == 0


def test_a_table_without_a_column_of_the_encoder_is_refused_by_name(
    claims: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header, *lines = (claims / "claims.tsv").read_text().splitlines()
    (tmp_path / "raw.tsv").write_text("\n".join([header.replace("nppes_provider_state", "state"), *lines[:5]]) + "\n")
    assert run("encode-table", tmp_path, "raw", "--tables", str(tmp_path / "raw.tsv"), "--model", str(trained)) == 65
    error = capsys.readouterr().err
    assert "the table has no column 'nppes_provider_state'" in error
    assert "every column that the encoder of the model reads" in error


def test_a_matrix_that_does_not_fit_the_model_is_refused(
    claims: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scipy.sparse.save_npz(tmp_path / "codes.npz", scipy.sparse.csr_matrix((ROWS, 2)))
    words = ("--tables", str(claims / "claims.tsv"), "--matrix", str(tmp_path / "codes.npz"), "--model", str(trained))
    assert run("encode-table", tmp_path, "other", *words) == 65
    error = capsys.readouterr().err
    assert "the matrix does not fit the model" in error
    assert "2 columns" in error


def test_validation_rows_choose_the_weights_and_the_temperature(claims: Path, tmp_path: Path) -> None:
    assert encode(claims, tmp_path / "encoded", "--fractions", "0.6", "0.2", "0.2", "--ratio", "3") == 0
    assert (
        train(tmp_path / "encoded" / "training_set", tmp_path / "model", "--epochs", "2", "--validation-interval", "1")
        == 0
    )
    card = read_card(tmp_path / "model")
    assert card.training["num_validation_cases"] == 600
    assert card.metrics["validation_macro_roc_auc"] is not None
    assert report_of(tmp_path / "model")["cases"] == []


# -- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--steps", "5"), "invalid value of --epochs"),
        (("--epochs", "1", "--flip-axes", "I"), "invalid value of --flip-axes"),
        (("--epochs", "1", "--augment"), "invalid value of --augment"),
        (("--epochs", "1", "--folds", "2"), "invalid value of --folds"),
        (
            ("--epochs", "1", "--strategy", "local-sgd", "--ranks", "641", "--batch-size", "700"),
            "more ranks than training",
        ),
    ],
)
def test_options_without_a_meaning_for_rows_are_refused(
    encoded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    assert train(encoded / "training_set", tmp_path / "model", *options) in (2, 65)
    assert message in capsys.readouterr().err


def test_rows_of_another_encoder_are_not_classified(
    claims: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert encode(claims, tmp_path / "other", "--seed", "9") == 0
    batch = tmp_path / "other" / "inference_batches" / "batch-000"
    words = ("--model", str(trained), "--case-batch", str(batch), "--backend", "torch")
    assert run("classify", tmp_path, "classes", *words) == 65
    assert "the rows were not encoded for the model" in capsys.readouterr().err


def test_rows_are_neither_explained_nor_used_to_compare_models(
    encoded: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = str(encoded / "inference_batches" / "batch-000")
    assert run("explain", tmp_path, "maps", "--model", str(trained), "--case-batch", batch) == 65
    assert "rows of a table cannot be explained" in capsys.readouterr().err
    card = read_card(trained)
    with pytest.raises(UserInputError, match="rows of a table cannot be used to calibrate or compare models"):
        task_named(card.task_name).check_truth(open_prepared(encoded / "training_set").cohort, card)


def test_a_changed_class_count_is_refused(encoded: Path) -> None:
    cohort = open_prepared(encoded / "training_set").cohort
    parts = [dataclasses.replace(part, rows_by_class={"excluded": part.num_rows}) for part in cohort.cases]
    prepared = dataclasses.replace(
        open_prepared(encoded / "training_set"), cohort=dataclasses.replace(cohort, cases=tuple(parts))
    )
    with pytest.raises(UserInputError, match="no training case has the class not-excluded"):
        usable_cases(prepared, targets_of_cohort(cohort))
