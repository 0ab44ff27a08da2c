"""`place-layers`: loads of a network by hooks, loads of a file, table, placement.json and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from medweave_core.contracts import codec
from medweave_core.contracts.placement import Partition, Placement
from medweave_steps.cli import main
from medweave_steps.training.placement.partitions import join_light

RESNET18: dict[str, Any] = {
    "unit": "GMAC",
    "partitions": [
        {"name": f"block {number}", "load": load, "memory_mib": 10}
        for number, load in enumerate((0.223, 3.567, 3.567, 1.354, 1.784, 0.677, 0.892, 0.387, 0.510, 0.001))
    ],
}


def place_layers(folder: Path, *words: object) -> int:
    outputs = ["--output", folder / "placement.json", "--run-report", folder / "run_report.json", "--num-threads", 1]
    return main([str(word) for word in ("place-layers", *words, *outputs)])


def placement_in(folder: Path) -> Placement:
    text = (folder / "placement.json").read_text(encoding="utf-8")
    return codec.from_json(Placement, json.loads(text), where="placement.json")


def test_loads_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loads = tmp_path / "loads.json"
    loads.write_text(json.dumps(RESNET18))
    assert place_layers(tmp_path, "--loads", loads, "--devices", 3) == 0
    placement = placement_in(tmp_path)
    assert placement.assignment == (0, 0, 1, 1, 2, 2, 2, 2, 2, 2)
    shown = capsys.readouterr().out
    assert "Makespan 4.921 GMAC; no placement is below 4.321 GMAC. 2 edges between devices." in shown
    assert "Speed-up over one device: at most 2.63." in shown
    assert [line.split() for line in shown.splitlines()][4] == ["block", "3", "1.354", "10.0", "1"]
    report = json.loads((tmp_path / "run_report.json").read_text())
    assert report["results"]["makespan"] == pytest.approx(4.921)
    assert report["results"]["assignment"] == list(placement.assignment)
    assert report["results"]["speed_up_bound"] == pytest.approx(12.962 / 4.921)


def test_unequal_devices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    yaml = "unit: s\npartitions:\n- {name: a, load: 2, memory_mib: 9}\n- {name: b, load: 1}\n- {name: c, load: 1}\n"
    (tmp_path / "loads.yml").write_text(yaml)
    words = ("--loads", tmp_path / "loads.yml", "--speeds", 1, 2, "--memory-mib", 10, 8, "--mode", "free")
    assert place_layers(tmp_path, *words, "--fitness", "makespan") == 0
    assert placement_in(tmp_path).assignment == (0, 1, 1)
    assert placement_in(tmp_path).speed_up_bound == 1.0, (
        "4 of load, 2 on the fast device: no gain over this device alone"
    )
    assert "note" not in capsys.readouterr().err
    assert place_layers(tmp_path, *words) == 0
    assert "--fitness makespan gives the shortest time" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        ((), 2, "invalid value of --devices"),
        (("--devices", 0), 2, "invalid value of --devices"),
        (("--devices", 2, "--speeds", 1), 2, "invalid value of --speeds"),
        (("--speeds", 1, "nan"), 2, "invalid value of --speeds"),
        (("--devices", 3, "--memory-mib", 1, 2), 2, "invalid value of --memory-mib"),
        (("--devices", 2, "--network", "unet"), 2, "--loads and --network exclude each other"),
        (("--devices", 11), 65, "more stages than partitions"),
        (("--devices", 2, "--memory-mib", 9), 65, "is larger than the memory of every device"),
        (("--devices", 2, "--memory-mib", 30), 65, "do not fit into the memory of the devices"),
    ],
)
def test_bad_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[Any, ...], exit_code: int, message: str
) -> None:
    (tmp_path / "loads.json").write_text(json.dumps(RESNET18))
    assert place_layers(tmp_path, "--loads", tmp_path / "loads.json", *words) == exit_code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "placement.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "text that is not JSON"),
        ('{"partitions": []}', "no partitions"),
        ('{"partitions": [{"name": "a", "load": NaN}]}', "load nan"),
        ('{"partitions": [{"name": "a", "load": -1}]}', "load -1.0"),
        ('{"partitions": [{"name": "a", "load": "x"}]}', "partitions[0].load"),
    ],
)
def test_bad_files_of_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    (tmp_path / "loads.json").write_text(text)
    assert place_layers(tmp_path, "--loads", tmp_path / "loads.json", "--devices", 1) == 65
    assert message in capsys.readouterr().err


def test_light_partitions_join_a_neighbor() -> None:
    loads = {"stem": 1.0, "relu": 0.0, "small": 0.5, "tiny": 0.2, "block": 97.0, "pool": 0.0, "head": 0.1}
    parts = [Partition(name=name, load=load, gmac=load, memory_mib=1.0) for name, load in loads.items()]
    joined = join_light(parts)
    assert [part.name for part in joined] == ["stem to relu", "small to head"]
    assert [part.load for part in joined] == pytest.approx([1.0, 97.8])
    assert [part.memory_mib for part in joined] == [2.0, 5.0]


torch = pytest.importorskip("torch")

from medweave_steps.networks.channel_graph import trace_channels  # noqa: E402
from medweave_steps.networks.resattnet import ResAttNet  # noqa: E402
from medweave_steps.training.placement.cut import cut  # noqa: E402
from medweave_steps.training.placement.loads import measure_loads  # noqa: E402
from medweave_steps.training.placement.partitions import blocks_of  # noqa: E402


def small_network() -> Any:
    nn = torch.nn
    return nn.Sequential(
        nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU()),
        nn.ConvTranspose3d(4, 4, 2, stride=2),
        nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3)),
    ).eval()


def test_multiply_adds_and_memory_of_partitions() -> None:
    network, example = small_network(), torch.zeros(1, 2, 8, 8, 8)
    loads = measure_loads(list(network.named_children()), example)
    assert [part.gmac for part in loads] == pytest.approx([512 * 4 * 2 * 27 / 1e9, 512 * 4 * 4 * 8 / 1e9, 12 / 1e9])
    assert [part.load for part in loads] == [part.gmac for part in loads]
    assert [part.parameters for part in loads] == [216 + 4 + 8, 128 + 4, 15]
    assert all(part.seconds is not None and part.seconds > 0 for part in loads)
    for part in loads:
        assert part.memory_mib >= 16 * (part.parameters or 0) / 2**20
    assert loads[0].memory_mib > loads[2].memory_mib
    seconds = measure_loads(list(network.named_children()), example, measure="seconds")
    assert [part.load for part in seconds] == [part.seconds for part in seconds]


def test_multiply_adds_equal_those_of_prune() -> None:
    network, example = small_network(), torch.zeros(1, 2, 8, 8, 8)
    total = sum(part.gmac or 0.0 for part in measure_loads(list(network.named_children()), example))
    assert total * 1e9 == pytest.approx(trace_channels(network, (2, 8, 8, 8)).macs)


def test_partitions_may_hand_over_several_tensors() -> None:
    class Twice(torch.nn.Module):  # type: ignore[misc]
        def forward(self, image: Any) -> Any:
            return image, 2 * image

    class Sum(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, image: Any, skip: Any) -> Any:
            return self.layer(image) @ skip.transpose(0, 1)

    loads = measure_loads([("twice", Twice()), ("sum", Sum())], torch.zeros(3, 4))
    assert [part.gmac for part in loads] == pytest.approx([0.0, (3 * 4 * 4 + 3 * 4 * 3) / 1e9])


def test_blocks_are_in_the_order_in_which_they_run() -> None:
    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.head = torch.nn.Linear(4, 1)
            self.unused = torch.nn.Linear(4, 4)
            self.stages = torch.nn.ModuleList([torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.Linear(4, 4))])

        def forward(self, image: Any) -> Any:
            for stage in self.stages:
                image = stage(image)
            return self.head(image)

    assert [name for name, _ in blocks_of(Network(), torch.zeros(1, 4))] == ["stages.0", "stages.1.0", "head"]


def test_a_network_of_the_registry(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--network", "mobilenet", "--width", 0.25, "--patch-shape", 32, 32, 1, "--input-channels", 3)
    assert place_layers(tmp_path, *words, "--devices", 2) == 0
    placement = placement_in(tmp_path)
    assert placement.unit == "GMAC"
    assert len(placement.partitions) >= 8
    assert sum(part.load for part in placement.partitions) == pytest.approx(sum(placement.device_loads))
    assert set(placement.assignment) == {0, 1}
    shown = capsys.readouterr()
    assert "no placement is below" in shown.out
    assert "--strategy hybrid cannot train this network: the layer 'features.0' takes another tensor" in shown.err
    words = ("--network", "vgg16", "--width", 0.1, "--patch-shape", 32, 32, 4)
    assert place_layers(tmp_path, *words, "--devices", 2) == 65
    assert "does not take this input" in capsys.readouterr().err


def test_partitions_are_those_of_hybrid_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--network", "resattnet18", "--width", 1 / 16, "--patch-shape", 32, 32, 32, "--devices", 10)
    assert place_layers(tmp_path, *words) == 0
    assert "cannot train" not in capsys.readouterr().err
    names = [part.name for part in placement_in(tmp_path).partitions]
    assert names == [name for name, _ in cut(resattnet18(width=1 / 16), torch.zeros(1, 1, 32, 32, 32))]


def resattnet18(*, width: float) -> Any:
    channels = [int(width * number) for number in (64, 128, 256, 512)]
    return ResAttNet(in_channels=1, num_classes=2, layers=(2, 2, 2, 2), channels=channels)


def test_loads_of_resattnet18_are_those_of_the_reference() -> None:
    """At 96 x 112 x 96 voxels, without the attention before the head, which the reference does not count."""
    with torch.device("meta"):
        network, example = resattnet18(width=1.0).eval(), torch.zeros(1, 1, 96, 112, 96)
        *loads, head = measure_loads(network.partitions(), example)
    *reference, _ = (part["load"] for part in RESNET18["partitions"])
    assert [part.load for part in loads] == pytest.approx(reference, abs=5e-4)
    assert head.load == pytest.approx(0.0125, abs=5e-5)
