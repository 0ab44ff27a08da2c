"""The reference for `segment`: what a careful practitioner writes with MONAI, torch and highdicom, one stage after the other.

MONAI LoadImage -> Orientation -> SpatialResample onto the network's grid -> SpatialCrop -> ScaleIntensityRange ->
SlidingWindowInferer around the eager network in float32 -> sigmoid -> components -> zero padding -> SpatialResample back to the
source grid -> threshold -> highdicom Segmentation. It gets grid and crop as inputs and does not detect the lungs.

It runs as a separate process that answers requests on stdin, so that imports and the loading of the model count for
neither side. `ALLOCATOR` belongs to it: with the default allocator eager torch spends much of its time on page faults.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

# Keeps freed memory in the process: no new mapping for each layer's output.
ALLOCATOR = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_MMAP_THRESHOLD_": "4294967296",
    "MALLOC_TRIM_THRESHOLD_": "17179869184",
    "MALLOC_TOP_PAD_": "268435456",
    "MALLOC_ARENA_MAX": "1",
}


class Reference:
    """The pipeline with its network loaded."""

    def __init__(self, model: Path, num_threads: int) -> None:
        import torch
        from monai.inferers import SlidingWindowInferer

        from medweave_steps.io.model.folder import read_card
        from medweave_steps.io.model.network import load_network

        torch.set_num_threads(num_threads)
        self.card = read_card(model)
        self.network = load_network(model, self.card)
        self.inferer = SlidingWindowInferer(
            roi_size=self.card.input.patch_shape,
            sw_batch_size=1,
            overlap=self.card.postprocessing.overlap,
            mode="gaussian",
            sigma_scale=0.125,
        )

    def run(self, series: Path, info: Any, output: Path) -> dict[str, float]:
        """Segment a series; return the seconds of each stage and write `mask.npy` (packed bits) next to the SEG."""
        import numpy as np
        import torch

        marks = [("", time.perf_counter())]

        def mark(stage: str) -> None:
            marks.append((stage, time.perf_counter()))

        with torch.inference_mode():
            image = self._load(series)
            mark("load")
            volume = self._to_network_grid(image, info)
            mark("resample")
            probability = torch.sigmoid(self.inferer(volume[None], self.network)[0])
            mark("network")
            mask = self._to_source_grid(probability, image, info)
            mark("restore")
            self._write(mask, series, output / "lesion_mask.dcm")
            mark("write")
        np.save(output / "mask.npy", np.packbits(mask))
        seconds = {name: b - a for (_, a), (name, b) in itertools.pairwise(marks)}
        return seconds | {"total": marks[-1][1] - marks[0][1]}

    def _load(self, series: Path) -> Any:
        import torch
        from monai.transforms import EnsureChannelFirst, LoadImage, Orientation

        image = LoadImage(reader="PydicomReader", image_only=True, dtype=torch.float32)(series)
        return Orientation(axcodes="RAS", labels=None)(EnsureChannelFirst()(image))

    def _to_network_grid(self, image: Any, info: Any) -> Any:
        import numpy as np
        import torch
        from monai.transforms import ScaleIntensityRange, SpatialCrop, SpatialResample

        from medweave_steps.io.geometry import ras_grid, resampled_grid, resampled_shape

        ras = ras_grid(info.source_grid, info.source_axis, info.source_flipped)
        spacing = info.grid.spacing_mm
        shape = resampled_shape(ras.shape, ras.spacing_mm, spacing)
        self.full = resampled_grid(ras, spacing, start=(0, 0, 0), shape=shape)
        resample = SpatialResample(mode="bilinear", padding_mode="border", align_corners=True, dtype=torch.float32)
        resampled = resample(image, dst_affine=np.asarray(self.full.affine), spatial_size=shape)
        stop = [a + b for a, b in zip(info.crop_start, info.grid.shape, strict=True)]
        cropped = SpatialCrop(roi_start=info.crop_start, roi_end=stop)(resampled)
        low, high = self.card.input.window_hu
        return ScaleIntensityRange(low, high, *self.card.input.scaled_range, clip=True)(cropped).as_tensor()

    def _to_source_grid(self, probability: Any, image: Any, info: Any) -> Any:
        import numpy as np
        import torch
        from monai.data import MetaTensor
        from monai.transforms import SpatialResample

        filtered = self._drop_weak_and_small(probability[0].numpy(), info)
        after = [n - a - b for n, a, b in zip(self.full.shape, info.crop_start, info.grid.shape, strict=True)]
        full = np.pad(filtered, list(zip(info.crop_start, after, strict=True)))
        whole = MetaTensor(torch.from_numpy(full)[None], affine=torch.from_numpy(np.asarray(self.full.affine)))
        resample = SpatialResample(mode="bilinear", padding_mode="border", align_corners=True, dtype=torch.float32)
        restored = resample(whole, dst_affine=image.affine, spatial_size=image.shape[1:])
        mask_ras = (restored[0].as_tensor() >= self.card.postprocessing.threshold).numpy()
        # MONAI has turned the volume to RAS; DICOM wants [slice, row, column] of the series.
        from medweave_steps.io.geometry import from_ras_order

        return np.ascontiguousarray(from_ras_order(mask_ras, info.source_axis, info.source_flipped))

    def _drop_weak_and_small(self, probability: Any, info: Any) -> Any:
        import numpy as np
        from scipy import ndimage

        settings = self.card.postprocessing
        labels, num = ndimage.label(probability >= settings.threshold, structure=np.ones((3, 3, 3)))
        dropped = np.bincount(labels.ravel(), minlength=num + 1) * info.grid.voxel_volume_mm3 < settings.min_volume_mm3
        dropped[1:] |= ndimage.maximum(probability, labels, np.arange(1, num + 1)) < np.float32(settings.min_peak)
        dropped[0] = False
        return np.where(dropped[labels], np.float32(0), probability)

    def _write(self, mask: Any, series: Path, path: Path) -> None:
        import highdicom as hd
        import numpy as np
        import pydicom
        from pydicom.sr.codedict import codes

        images = [pydicom.dcmread(file, stop_before_pixels=True) for file in sorted(series.glob("*.dcm"))]
        cosines = np.asarray(images[0].ImageOrientationPatient, dtype=float)
        normal = np.cross(cosines[:3], cosines[3:])
        images.sort(key=lambda one: float(normal @ np.asarray(one.ImagePositionPatient, dtype=float)))
        segment = hd.seg.SegmentDescription(
            segment_number=1,
            segment_label="Nodule",
            segmented_property_category=codes.SCT.MorphologicallyAbnormalStructure,
            segmented_property_type=codes.SCT.Nodule,
            algorithm_type=hd.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
            algorithm_identification=hd.AlgorithmIdentificationSequence(
                name="reference", version="1", family=codes.DCM.ArtificialIntelligence
            ),
        )
        segmentation = hd.seg.Segmentation(
            source_images=images,
            pixel_array=mask,
            segmentation_type=hd.seg.SegmentationTypeValues.BINARY,
            segment_descriptions=[segment],
            series_instance_uid=hd.UID(),
            series_number=100,
            sop_instance_uid=hd.UID(),
            instance_number=1,
            manufacturer="reference",
            manufacturer_model_name="reference",
            software_versions="1",
            device_serial_number="1",
            omit_empty_frames=False,
        )
        segmentation.save_as(path)


def versions() -> str:
    """Return the versions of the reference's tools."""
    from importlib.metadata import version

    return ", ".join(f"{name} {version(name)}" for name in ("monai", "torch", "highdicom"))


def main() -> None:
    """Answer one request per line: {"series", "info", "output"} -> the seconds per stage."""
    from medweave_core.contracts.volume import VolumeInfo
    from medweave_steps.io.cohort.prepared import read_contract

    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--num-threads", type=int, required=True)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    reference = Reference(arguments.model, arguments.num_threads)
    print(json.dumps({"ready": versions()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        info = read_contract(VolumeInfo, Path(request["info"]), where="volume_info.json")
        output = Path(request["output"])
        output.mkdir(parents=True, exist_ok=True)
        print(json.dumps(reference.run(Path(request["series"]), info, output)), flush=True)


if __name__ == "__main__":
    main()
