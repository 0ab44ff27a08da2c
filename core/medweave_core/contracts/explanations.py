"""`explanations.json`: the maps of `explain` for a batch of cases, and their sanity check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from medweave_core.contracts.classes import ImageClass
from medweave_core.contracts.model import RESEARCH_USE_ONLY
from medweave_core.contracts.volume import DataClass, SourceFormat, Triple

RECORD_FILE = "explanations.json"
MAP_NIFTI = "explanation_map.nii.gz"
MAP_PICTURE = "explanation_map.png"
OVERLAY = "explanation_overlay.png"
METHOD_SOURCE = "Selvaraju et al. 2017, ICCV, Grad-CAM; implementation: monai.visualize.GradCAM"
SANITY_SOURCE = "Adebayo et al. 2018, NeurIPS, Sanity checks for saliency maps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedLayer:
    """The layer whose features the maps weight.

    Attributes:
        name: name of the module in the network.
        kind: class of the module, such as Conv3d.
        grid: number of features along I, J, K; along I, J for a network of 2-D images. The maps are not finer than this grid.
        input_shape: voxels of the network's input along I, J, K.
        is_default: True if the layer was chosen by the rule, False if it was named with `--layer`.
    """

    name: str
    kind: str
    grid: tuple[int, ...]
    input_shape: Triple
    is_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionMass:
    """The mass of a map inside one label of a label map: the sum of its values there, as a share of the sum of all.

    Attributes:
        value, name: of the label.
        mass_share: share of the map's mass inside the label, from 0 to 1; None for an empty map.
        volume_share: the label's share of the voxels of the image, from 0 to 1.
        ratio: mass_share divided by volume_share; above 1 the map is denser inside the label than in the mean of the image.
    """

    value: int
    name: str
    mass_share: float | None
    volume_share: float
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedCase:
    """The map of one case; its files lie in `<case_id>/`.

    Attributes:
        files: file name to SHA-256: the map on the source grid with values from 0 to 1 (NIfTI, float32, for volumes; PNG, 16 bits,
            65535 is 1, for 2-D images), and a picture of it over the prepared image.
        explained_class: the class that the map explains.
        is_predicted: True if the model predicts this class.
        probability: calibrated probability of this class.
        is_empty: True if all values of the map are 0: no feature of the layer raises the score of the class.
        regions: mass of the map in each label of the case's label map; empty without one.
        regions_grid: grid of that label map, on which the shares are counted.
        brain_mass_share: share of the map's mass inside the brain, the prepared voxels that are not 0, from 0 to 1; None for an
            empty map, and without a mask.
        brain_volume_share: that mask's share of the voxels, from 0 to 1, on the grid of the label map, else on the source grid;
            None without a mask. A map that is uniform over the brain, and 0 elsewhere, has the ratio 1 / brain_volume_share in
            each region of the brain.
        sanity_correlation: rank correlation (Spearman) with the map of the randomized network; None for a case that was not
            checked, and where one of the two maps is constant.
    """

    case_id: str
    source_format: SourceFormat
    files: Mapping[str, str]
    explained_class: str
    is_predicted: bool
    probability: float
    is_empty: bool
    regions: tuple[RegionMass, ...] = ()
    regions_grid: Literal["source", "prepared"] | None = None
    brain_mass_share: float | None = None
    brain_volume_share: float | None = None
    sanity_correlation: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SanityCheck:
    """Comparison with the maps of the same network with random weights: a map that depends on the model must change.

    Where the map of the explained class is empty with random weights, it is that of the class which has the highest output then.

    Attributes:
        seed: of the random weights.
        num_cases: number of cases checked: the first ones of the batch.
        num_compared: number of them with a rank correlation.
        median_absolute_correlation: median over these of the absolute rank correlation (Spearman), from 0 to 1.
        threshold: the check passes if the median is below.
        passed: None if no case could be compared.
        source: publication of the check.
    """

    seed: int
    num_cases: int
    num_compared: int
    median_absolute_correlation: float | None
    threshold: float
    passed: bool | None
    source: str = SANITY_SOURCE

    @property
    def sentence(self) -> str:
        """Return the verdict in words, for logs and the report."""
        cases = f"{self.num_compared} case{'' if self.num_compared == 1 else 's'}"
        if self.passed is None:
            return f"Sanity check not possible: of {self.num_cases} checked cases, no map could be compared."
        verdict = "passed" if self.passed else "failed: the maps hardly depend on what the network has learned"
        return (
            f"Sanity check {verdict}. The maps have a median absolute rank correlation of "
            f"{self.median_absolute_correlation:.2f} with those of the same network with random weights ({cases}, limit "
            f"{self.threshold:g})."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanations:
    """The maps of a batch, the model, the layer, and the sanity check.

    Attributes:
        model_name: name of the model.
        model_sha256: digest of the model card, which holds the digests of the model's files.
        method: how the maps were computed.
        method_source: its publication and implementation.
        scaling: meaning of the maps' values.
        layer: the layer whose features the maps weight.
        synthetic_data: the cases come from a generator.
        synthetic_model: the model was trained on such cases.
        classes: classes of the model with their codes, in the order of its output.
        cases: the explained cases.
        sanity_check: None if it was switched off, or there is no case.
    """

    model_name: str
    model_sha256: str
    layer: ExplainedLayer
    synthetic_data: bool
    synthetic_model: bool
    classes: tuple[ImageClass, ...]
    cases: tuple[ExplainedCase, ...]
    sanity_check: SanityCheck | None
    method: Literal["grad-cam"] = "grad-cam"
    method_source: str = METHOD_SOURCE
    scaling: str = "divided by the largest value of the map on the grid of the network's input"
    intended_use: str = RESEARCH_USE_ONLY
    explanations_version: Literal[1] = 1
    data_class: DataClass = "derived"
