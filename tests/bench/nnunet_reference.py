"""The nnU-Net side of `nnunet.py`: plan, preprocess, train and predict one data set on the CPU, in nnU-Net's own environment.

Every stage is nnU-Net's: fingerprint, planner of the residual-encoder U-Net, preprocessor, trainer (`nnUNetTrainer`, one data
process, one compute thread), and predictor (steps of half a patch, no mirroring). Only sizes differ from its defaults: 8 channels
in the first stage, patches of 32 voxels per side, from which the planner itself derives stages and batch size, and the number of
iterations. nnU-Net lowers the learning rate once per epoch, so epochs are short (`EPOCH_ITERATIONS`).

It imports nothing of medweave. nnU-Net is imported by name, because it is no dependency of this repository.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DATA_SET_ID, DATA_SET = 1, "Dataset001_Brain"
CONFIGURATION, PLANS = "3d_fullres", "nnUNetResEncUNetPlans"
BASE_CHANNELS, PATCH_SIDE = 8, 32
EPOCH_ITERATIONS = 25
FOLDERS = {"nnUNet_raw": "raw", "nnUNet_preprocessed": "preprocessed", "nnUNet_results": "results"}
NUM_PROCESSES = 2


def imported(name: str) -> Any:
    """Return a module of the environment that runs this file."""
    return importlib.import_module(name)


def plan_and_preprocess(data: Path, splits: Path) -> Mapping[str, Any]:
    """Return the plans for the data set, after preprocessing it.

    Args:
        data: folder of `FOLDERS`.
        splits: the `splits_final.json` to train with.
    """
    import numpy as np

    api = imported("nnunetv2.experiment_planning.plan_and_preprocess_api")
    planners = imported("nnunetv2.experiment_planning.experiment_planners.resencUNet_planner")
    api.extract_fingerprints([DATA_SET_ID], num_processes=NUM_PROCESSES, show_progress_bar=False)
    planner = planners.ResEncUNetPlanner(DATA_SET_ID)
    planner.UNet_base_num_features = BASE_CHANNELS
    own_plans = planner.get_plans_for_configuration

    def with_small_patch(spacing: Any, median_shape: Any, *others: Any) -> dict[str, Any]:
        # The planner cuts its first patch to the median case; this is the only bound on the patch that it has.
        plan: dict[str, Any] = own_plans(spacing, np.minimum(median_shape, PATCH_SIDE), *others)
        return plan | {"median_image_size_in_voxels": median_shape}

    planner.get_plans_for_configuration = with_small_patch
    planner.plan_experiment()
    api.preprocess([DATA_SET_ID], PLANS, (CONFIGURATION,), (NUM_PROCESSES,), show_progress_bar=False)
    folder = data / FOLDERS["nnUNet_preprocessed"] / DATA_SET
    (folder / "splits_final.json").write_text(splits.read_text(encoding="utf-8"), encoding="utf-8")
    plans: Mapping[str, Any] = json.loads((folder / f"{PLANS}.json").read_text(encoding="utf-8"))
    return plans


def describe_plan(plans: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan with axes I J K; nnU-Net's are K J I, in the order of `transpose_forward`."""
    plan = plans["configurations"][CONFIGURATION]
    network = plan["architecture"]["arch_kwargs"]

    def along_ijk(values: Any) -> list[Any]:
        return [values[place] for place in plans["transpose_backward"]][::-1]

    return {
        "spacing_mm": along_ijk(plan["spacing"]),
        "patch_shape": along_ijk(plan["patch_size"]),
        "batch_size": plan["batch_size"],
        "channels": list(network["features_per_stage"]),
        "strides": [along_ijk(stride) for stride in network["strides"]],
        "kernels": [along_ijk(kernel) for kernel in network["kernel_sizes"]],
        "blocks": list(network["n_blocks_per_stage"]),
        "median_shape": along_ijk(plan["median_image_size_in_voxels"]),
        "normalization": plan["normalization_schemes"],
        "normalized_inside_mask": plan["use_mask_for_norm"],
        "dice_over_batch": plan["batch_dice"],
    }


def train(data: Path, plans: Mapping[str, Any], iterations: int) -> tuple[Any, list[float]]:
    """Return the trainer after its last iteration, and the seconds of each epoch without its validation."""
    import torch

    trainer_type = imported("nnunetv2.training.nnUNetTrainer.nnUNetTrainer").nnUNetTrainer
    dataset = json.loads((data / FOLDERS["nnUNet_raw"] / DATA_SET / "dataset.json").read_text(encoding="utf-8"))
    trainer = trainer_type(
        plans={**plans, "continue_training": False}, configuration=CONFIGURATION, fold=0, dataset_json=dataset,
        device=torch.device("cpu"),
    )  # fmt: skip
    trainer.num_iterations_per_epoch = min(EPOCH_ITERATIONS, iterations)
    trainer.num_epochs = iterations // trainer.num_iterations_per_epoch
    trainer.num_val_iterations_per_epoch = 1
    trainer.disable_checkpointing = True
    trainer.logger.plot_progress_png = lambda folder: None
    seconds: list[float] = []
    own_start, own_end = trainer.on_train_epoch_start, trainer.on_train_epoch_end

    def start() -> None:
        own_start()
        seconds.append(-time.perf_counter())

    def end(outputs: Any) -> None:
        seconds[-1] += time.perf_counter()
        own_end(outputs)

    trainer.on_train_epoch_start, trainer.on_train_epoch_end = start, end
    trainer.run_training()
    return trainer, seconds


def count_weights(network: Any) -> int:
    """Return the number of weights, without the output of the lowest resolution, whose loss nnU-Net weights with zero."""
    return sum(
        weight.numel() for name, weight in network.named_parameters() if not name.startswith("decoder.seg_layers.0.")
    )


def predict(trainer: Any, images: Path, output: Path) -> None:
    """Write a label map for each test case with the last weights."""
    predictor = imported("nnunetv2.inference.predict_from_raw_data").nnUNetPredictor(
        tile_step_size=0.5, use_gaussian=True, use_mirroring=False, perform_everything_on_device=True,
        device=trainer.device, allow_tqdm=False,
    )  # fmt: skip
    trainer.set_deep_supervision_enabled(False)
    trainer.network.eval()
    predictor.manual_initialization(
        trainer.network, trainer.plans_manager, trainer.configuration_manager,
        [copy.deepcopy(trainer.network.state_dict())], trainer.dataset_json, type(trainer).__name__, None,
    )  # fmt: skip
    output.mkdir(parents=True)
    predictor.predict_from_files_sequential(str(images), str(output), save_probabilities=False, overwrite=True)


def main() -> None:
    """Run all stages and write their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with raw/, of absolute path")
    parser.add_argument("--splits", type=Path, required=True, help="splits_final.json")
    parser.add_argument("--test-images", type=Path, required=True)
    parser.add_argument("--iterations", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder for the label maps")
    parser.add_argument("--figures", type=Path, required=True, help="JSON file to write")
    options = parser.parse_args()
    # nnU-Net reads these when it is imported.
    os.environ |= {name: str(options.data / folder) for name, folder in FOLDERS.items()}
    os.environ |= {"nnUNet_n_proc_DA": "1", "nnUNet_def_n_proc": str(NUM_PROCESSES), "MPLBACKEND": "Agg"}
    import numpy as np
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    np.random.seed(options.seed)  # nnU-Net draws from the global generator
    random.seed(options.seed)
    started = time.perf_counter()
    plans = plan_and_preprocess(options.data, options.splits)
    prepared = time.perf_counter()
    trainer, seconds = train(options.data, plans, options.iterations)
    trained = time.perf_counter()
    predict(trainer, options.test_images, options.output)
    iterations = trainer.num_epochs * trainer.num_iterations_per_epoch
    figures = {
        "plan": describe_plan(plans),
        "num_weights": count_weights(trainer.network),
        "iterations": iterations,
        "seconds_per_iteration": sum(seconds) / iterations,
        "seconds": {
            "prepare": prepared - started,
            "train": trained - prepared,
            "predict": time.perf_counter() - trained,
        },
        "num_threads": torch.get_num_threads(),
        "losses": [float(loss) for loss in trainer.logger.get_value("train_losses", step=None)],
        "versions": {
            name: importlib.import_module("importlib.metadata").version(name)
            for name in ("nnunetv2", "dynamic_network_architectures", "batchgeneratorsv2", "torch", "numpy")
        },
    }
    options.figures.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
