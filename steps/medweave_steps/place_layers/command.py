"""`medweave-step place-layers`: the loads of a network's layers, and their placement on devices by GABRA."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medweave_core.contracts import codec
from medweave_core.contracts.placement import PartitionLoads, Placement
from medweave_core.errors import UsageError, UserInputError
from medweave_steps.io.cohort.json_or_yaml import read_document
from medweave_steps.networks import is_user_class, network_type
from medweave_steps.place_layers.config import PlaceLayersConfig
from medweave_steps.place_layers.table import table_of
from medweave_steps.runtime.verb import StepContext, Verb
from medweave_steps.runtime.write import write_text
from medweave_steps.training.placement.gabra import place
from medweave_steps.training.placement.problem import PlacementProblem


def run(config: PlaceLayersConfig, context: StepContext) -> Mapping[str, Any]:
    """Measure or read the loads, place them, print the placement and write it."""
    if config.loads is not None and "network" in context.options_set:
        raise UsageError(
            "--loads and --network exclude each other.", do="use the loads of a file, or measure a network"
        )
    loads = _measured(config, context) if config.loads is None else _read(config.loads)
    problem = PlacementProblem(partitions=loads.partitions, devices=config.all_devices(), mode=config.mode)
    placement = place(problem, fitness=config.fitness, seed=config.seed, unit=loads.unit)
    if config.fitness != "makespan" and len({device.speed for device in problem.devices}) > 1:
        context.notice("profit is highest on the slowest devices; --fitness makespan gives the shortest time.")
    print(table_of(placement), flush=True)
    write_text(config.output, codec.dumps(placement))
    return _results(placement)


def _read(path: Path) -> PartitionLoads:
    """Return the loads of a file.

    Raises:
        UserInputError: the file is no JSON or YAML of this form, or has no partitions.
    """
    try:
        document = read_document(path)
    except ValueError as error:
        raise _bad_file(str(error)) from error
    loads = codec.from_json(PartitionLoads, document, where="the file of --loads")
    if not loads.partitions:
        raise _bad_file("no partitions")
    return loads


def _bad_file(seen: str) -> UserInputError:
    return UserInputError(
        "the file of --loads cannot be used.",
        seen=seen,
        expected="a JSON or YAML document with `partitions`: a list with name and load of each partition",
        do="list the partitions of the network in the order in which they run",
    )


def _measured(config: PlaceLayersConfig, context: StepContext) -> PartitionLoads:
    """Return the loads of the network of the options."""
    from medweave_steps.io.model.network import build_network
    from medweave_steps.networks.user_code import read_code
    from medweave_steps.runtime import environment
    from medweave_steps.runtime.imports import require
    from medweave_steps.training.device import choose_device
    from medweave_steps.training.placement.cut import cut_example
    from medweave_steps.training.placement.loads import measure_loads
    from medweave_steps.training.placement.partitions import blocks_of, join_light

    kind = network_type(config.network)
    code = read_code(config.network, config.network_code) if is_user_class(config.network) else None
    architecture = {"class": kind.class_name, "arguments": kind.arguments(config, config.input_channels)}
    torch = require("torch", extra="train")
    torch.set_num_threads(context.num_threads)
    device = choose_device(config.device)
    network = build_network(architecture, code=code).eval().to(device)
    example = cut_example(network, config.input_channels, config.patch_shape, patches=config.batch_size, device=device)
    stages = _stages(config, network, example, context)
    if stages is None:
        blocks = blocks_of(network, example)
        partitions = join_light(measure_loads(blocks, example, measure=config.measure, network=network))
    else:
        for _, module in stages:
            module.eval()
        partitions = measure_loads(stages, example, measure=config.measure)
    context.versions |= environment.library_versions()
    return PartitionLoads(partitions=partitions, unit={"gmac": "GMAC", "seconds": "s"}[config.measure])


def _stages(config: PlaceLayersConfig, network: Any, example: Any, context: StepContext) -> Any:
    """Return the partitions from which `--strategy hybrid` makes stages; None, with a notice, for a network that it cannot train.

    Raises:
        UserInputError: the network does not take the example, or declares partitions that are not the network.
    """
    from medweave_steps.training.loop.memory import is_exhausted
    from medweave_steps.training.placement.cut import NotAChain, cut

    try:
        return cut(network, example)
    except NotAChain as error:
        context.notice(
            f"--strategy hybrid cannot train this network: {error.seen}. The partitions are its top-level blocks."
        )
        return None
    except UserInputError:
        raise
    except Exception as error:  # a network raises anything for an input that it does not take
        if is_exhausted(error):
            raise
        raise UserInputError(
            f"the network '{config.network}' does not take this input.",
            seen=f"an input of shape {tuple(example.shape)}: {' '.join(str(error).split())[:200]}",
            expected="an input that the network takes",
            do="correct --patch-shape or --input-channels",
        ) from error


def _results(placement: Placement) -> dict[str, Any]:
    return {
        "partitions": len(placement.partitions), "devices": len(placement.devices), "unit": placement.unit,
        "assignment": list(placement.assignment), "makespan": placement.makespan, "bound": placement.bound,
        "speed_up_bound": placement.speed_up_bound, "profit": placement.profit, "cut_edges": placement.cut_edges,
        "generations": len(placement.best_fitness) - 1,
    }  # fmt: skip


DESCRIPTION = """\
Measures the load of each part of a network and places the parts on devices, for training with several stages. Or reads loads from
a file.

The partitions of a network are those from which `train --strategy hybrid` makes stages. A network that cannot be trained in stages
is divided into its top-level blocks in the order in which they run, where layers without multiply-adds and layers with less than
1 % of the load join a neighbor; a notice gives the reason. Hooks measure multiply-adds and seconds of one forward pass, and the
memory of a training: weights, gradients, Adam's two moments, and the tensors that the backward pass reads.

GABRA, a genetic algorithm (Akintoye et al. 2021), finds the placement. Every device gets at least one partition, and no more than
its memory. No placement has a makespan below the bound: the total load over the total speed, or the largest load over the highest
speed. The speed-up in stages over one device is at most the total load over the makespan. The table shows loads, devices and these
bounds; placement.json has loads, placement and the best fitness of each generation (schema: `medweave schema placement`). `medweave
advise placement.json` compares the stages with data parallel training. Equal seeds give equal placements for equal loads.

Errors: more devices than partitions; a partition larger than the memory of every device; a load that is negative or no number."""
EXAMPLE = "medweave-step place-layers --network resattnet18 --patch-shape 96 112 96 --devices 2 --fitness makespan"

VERB = Verb(name="place-layers", description=DESCRIPTION, example=EXAMPLE, config=PlaceLayersConfig, run=run)
