"""From one prepared case to its map: the class, the files, the mass per region and the comparison with random weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from medweave_core.contracts.cohort import PreparedCohort
from medweave_core.contracts.explanations import MAP_NIFTI, MAP_PICTURE, OVERLAY, ExplainedCase
from medweave_core.contracts.model import ModelCard
from medweave_core.contracts.volume import VolumeInfo, are_images
from medweave_steps.explain.gradcam import MapMaker
from medweave_steps.explain.network import EXTRA
from medweave_steps.explain.overlay import overlay_of
from medweave_steps.explain.regions import (
    LabelMap,
    brain_on_grid,
    mass_per_region,
    on_grid,
    read_label_map,
    shares_inside,
)
from medweave_steps.explain.sanity import rank_correlation
from medweave_steps.inference.engine import check_finite
from medweave_steps.inference.restore import restore_image_map, restore_map
from medweave_steps.io.cohort.prepared import CaseFolder
from medweave_steps.io.hashing import sha256_of_file
from medweave_steps.io.nifti.source_grid import write_map
from medweave_steps.runtime.imports import require
from medweave_steps.tasks.classification.judging import network_input
from medweave_steps.tasks.classification.outputs import ClassTargets

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explainer:
    """Explains the cases of one batch.

    Attributes:
        card: card of the model.
        cohort: description of the prepared cases.
        trained: maps of the model.
        randomized: maps of the same network with random weights; None without a sanity check.
        target: name of the class to explain; None for the predicted class of each case.
        label_maps: file of each case that has one.
        region_names: names of label values.
    """

    card: ModelCard
    cohort: PreparedCohort
    trained: MapMaker
    randomized: MapMaker | None = None
    target: str | None = None
    label_maps: Mapping[str, Path] = field(default_factory=dict)
    region_names: Mapping[int, str] = field(default_factory=dict)

    def explain(
        self, output: Path, case: CaseFolder, info: VolumeInfo, *, ordinal: int, is_checked: bool
    ) -> ExplainedCase:
        """Write the map of one case, and return its record.

        Args:
            output: folder of the batch; the case's own is made.
            ordinal: number of the case in the batch, from 1.
            is_checked: compare the map with that of the randomized network.
        Raises:
            UserInputError: its array cannot be read or has another shape than the model card; its label map does not fit.
            InternalError: the network gave values that are not finite.
        """
        volume_CIJK = case.volume_CIJK()
        image_BCIJK = network_input(volume_CIJK, self.card, case_id=info.case_id)
        path = self.label_maps.get(info.case_id)
        label_map = read_label_map(path, info, ordinal=ordinal) if path else None
        record, place = self._classified(image_BCIJK, info)
        map_IJK = self.trained.map_IJK(image_BCIJK, place, case_id=info.case_id)
        restored = restore_image_map(map_IJK, info) if self._is_image else restore_map(map_IJK, info)
        correlation = None
        if is_checked and self.randomized is not None:
            correlation = rank_correlation(map_IJK, randomized_map(self.randomized, image_BCIJK, place, info))
        record = dataclasses.replace(
            record,
            files=self._write(output / info.case_id, volume_CIJK, map_IJK, restored, info),
            is_empty=not map_IJK.any(),
            sanity_correlation=correlation,
        )
        return record if self._is_image else self._with_shares(record, label_map, volume_CIJK, map_IJK, restored, info)

    @property
    def _is_image(self) -> bool:
        return are_images(self.cohort.channels)

    def _classified(self, image_BCIJK: FloatArray, info: VolumeInfo) -> tuple[ExplainedCase, int]:
        """Return the record of a case without its map, and the place of the explained class in the network's output."""
        targets = ClassTargets.of(self.card)
        logits_BC = self.trained.logits(image_BCIJK)
        check_finite(logits_BC, self.card, what="logits")
        probability_BC = targets.probabilities(logits_BC, temperature=self.card.postprocessing.temperature)
        is_predicted_C = targets.decided(probability_BC, self.card.postprocessing)[0]
        # Of several predicted classes the most probable one; of a case without any likewise.
        preferred_C = probability_BC[0] + is_predicted_C
        place = targets.names.index(self.target) if self.target is not None else int(preferred_C.argmax())
        record = ExplainedCase(
            case_id=info.case_id,
            source_format=info.source_format,
            files={},
            explained_class=targets.names[place],
            is_predicted=bool(is_predicted_C[place]),
            probability=round(float(probability_BC[0, place]), 6),
            is_empty=False,
        )
        return record, place

    def _with_shares(
        self,
        record: ExplainedCase,
        label_map: LabelMap | None,
        volume_CIJK: npt.NDArray[np.floating],
        map_IJK: FloatArray,
        restored: FloatArray,
        info: VolumeInfo,
    ) -> ExplainedCase:
        """Return the record of a volume with the mass of its map in each region and in the brain."""
        where = label_map.where if label_map else "source"
        values = on_grid(where, prepared=map_IJK, restored=restored, info=info)
        regions = mass_per_region(values, label_map.labels, self.region_names) if label_map else ()
        mass_share, volume_share = None, None
        if info.has_brain_mask:
            mass_share, volume_share = shares_inside(values, brain_on_grid(where, volume_CIJK, info))
        return dataclasses.replace(
            record,
            regions=regions,
            regions_grid=label_map.where if label_map else None,
            brain_mass_share=mass_share,
            brain_volume_share=volume_share,
        )

    def _write(
        self,
        folder: Path,
        volume_CIJK: npt.NDArray[np.floating],
        map_IJK: FloatArray,
        restored: FloatArray,
        info: VolumeInfo,
    ) -> dict[str, str]:
        """Write the map on the source grid and the picture; return their digests."""
        folder.mkdir()
        if self._is_image:
            write_picture(folder / MAP_PICTURE, restored)
        else:
            write_map(folder / MAP_NIFTI, restored, info)
        overlay_of(volume_CIJK, map_IJK, self.cohort).save(folder / OVERLAY, "PNG")
        return {path.name: sha256_of_file(path) for path in sorted(folder.iterdir())}


def randomized_map(maker: MapMaker, image_BCIJK: FloatArray, place: int, info: VolumeInfo) -> FloatArray:
    """Return the map of a network with random weights, float32 [I, J, K], for the sanity check.

    Where the map of the class is empty, it is that of the class that this network predicts: random weights make classes
    interchangeable, and an empty map cannot be compared.

    Args:
        place: of the explained class in the output of the network.
    """
    map_IJK = maker.map_IJK(image_BCIJK, place, case_id=info.case_id)
    if map_IJK.any():
        return map_IJK
    return maker.map_IJK(image_BCIJK, int(maker.logits(image_BCIJK)[0].argmax()), case_id=info.case_id)


def write_picture(path: Path, restored: FloatArray) -> None:
    """Write the map of a 2-D image as PNG in gray, 16 bits: 65535 is 1.

    Args:
        restored: float32 [column, row, 1] in [0, 1].
    """
    pillow = require("PIL.Image", extra=EXTRA)
    values = np.rint(65535 * restored[..., 0].T).astype(np.uint16)
    pillow.fromarray(np.ascontiguousarray(values)).save(path, "PNG")
