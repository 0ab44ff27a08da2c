"""Pairing of the NIfTI files of a plain folder: which are masks, and to which volume each mask belongs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from medweave_core.contracts.cohort import Finding
from medweave_steps.io.findings import SeriesName, notice
from medweave_steps.io.nifti.volume import stem

MASK_FOLDERS = {"label", "mask", "masks", "seg", "segmentation", "segmentations", "annotations", "instances"}
MASK_WORDS = {"label", "labels", "labelmap", "mask", "masks", "seg", "segmentation", "segmentations"}
IMAGE_FOLDERS = {"image", "volumes", "scans"}
IMAGE_WORDS = {"ct", "image", "imaging", "img", "scan", "vol", "volume"}

PAIRING_RULE = (
    "a mask lies in a mask folder (labels*, masks, segmentations) or has a mask word (seg, mask, label) first or last in its name; "
    "it belongs to the volume of its own folder with the same name, where words such as ct, image and seg do not count"
)

Folder = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Volumes and masks of a plain folder.

    Attributes:
        masks: each volume with the masks that fit it; more than one is ambiguous.
        volumes: each mask with the volumes that it fits; more than one is ambiguous, none is a mask without a volume.
    """

    masks: Mapping[str, tuple[str, ...]]
    volumes: Mapping[str, tuple[str, ...]]

    def pairs(self) -> list[tuple[str, str | None]]:
        """Return every volume whose mask is certain, with that mask or None, in the order of the names."""
        return [(image, masks[0] if masks else None) for image, masks in self.masks.items() if not self._rivals(image)]

    def orphans(self) -> list[str]:
        """Return the masks that fit no volume."""
        return [mask for mask, volumes in self.volumes.items() if not volumes]

    def refusals(self, name_of: Callable[[str], SeriesName], numbers: Mapping[str, int]) -> dict[str, Finding]:
        """Return one error for each volume whose mask is not certain.

        Args:
            name_of: what messages call a volume.
            numbers: of each file among all files of the cohort, sorted by path, from 1.
        """
        return {
            image: name_of(image)
            .refuse(
                "ambiguous-mask",
                "the mask of the volume is ambiguous.",
                seen=seen,
                expected="one mask per volume (numbers are those of the files sorted by path)",
                do="keep one mask, in a folder labels/ next to its volume, or list the pairs in dataset.json",
            )
            .finding
            for image in self.masks
            if (seen := _seen(image, self._rivals(image), numbers))
        }

    def notices(self, numbers: Mapping[str, int]) -> list[Finding]:
        """Return the notices about a plain folder: it names no patients, and masks without a volume are ignored.

        Args:
            numbers: of each file among all files of the cohort, sorted by path, from 1.
        """
        findings = [
            notice(
                "no-patient-id",
                "NIfTI files have no patient ID: each volume counts as one patient in the split.",
                do="define the splits in splits.json if a patient has several volumes",
            )
        ]
        orphans = self.orphans()
        if orphans:
            findings.append(
                notice(
                    "orphan-mask",
                    f"{len(orphans)} {'mask fits' if len(orphans) == 1 else 'masks fit'} no volume and ignored.",
                    seen=f"file {', '.join(str(numbers[name]) for name in orphans[:6])} of the cohort, sorted by path",
                    do="move each mask to a folder labels/ next to its volume, under the name of the volume",
                )
            )
        return findings

    def _rivals(self, image: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Return masks and volumes that compete where a volume's mask is not certain, else None."""
        masks = self.masks[image]
        volumes = tuple(dict.fromkeys(volume for mask in masks for volume in self.volumes[mask]))
        return (masks, volumes) if len(masks) > 1 or len(volumes) > 1 else None


def pair_masks(names: Sequence[str]) -> Pairing:
    """Pair the masks of a plain folder with its volumes, each within its own folder.

    A mask lies in a mask folder (`labels*`, `masks`, `segmentations`, ...) or has a mask word first or last in its file name
    (`ct_seg`, `segmentation-0`). A mask in `A/labels/B/` belongs to the volume of the same name in `A/B/`, else in
    `A/images/B/`, else in a folder below `A` that ends with `B`. A mask that is recognized by its file name belongs to a
    volume of its own folder. Equal names go first; else names are compared without words such as `ct`, `image` and `seg`.

    Args:
        names: paths of NIfTI files relative to the cohort, sorted.
    """
    masks = {name: home for name in names if (home := _mask_home(name)) is not None}
    images = [name for name in names if name not in masks]
    by_stem, by_key = _indexed(images, stem), _indexed(images, _key)
    volumes = {name: _fitting(name, home, by_stem, by_key) for name, home in masks.items()}
    fitting: dict[str, tuple[str, ...]] = dict.fromkeys(images, ())
    for mask, candidates in volumes.items():
        for image in candidates:
            fitting[image] += (mask,)
    return Pairing(masks=fitting, volumes=volumes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Home:
    """The folders to search for the volume of a mask: `above/<anything>/below`; `suffix` is `Tr` of `labelsTr`."""

    above: Folder
    below: Folder = ()
    suffix: str = ""
    is_mask_folder: bool = True


def _mask_home(name: str) -> _Home | None:
    """Return where the volume of a mask is looked for, None for a volume."""
    folders = _folder(name)
    words = _words(stem(name))
    is_named_mask = any(word in MASK_WORDS for word in (*words[:1], *words[-1:]))
    for index in range(len(folders) - 1, -1, -1):
        part = folders[index].lower()
        if part.startswith("labels") or part in MASK_FOLDERS:
            suffix = folders[index][len("labels") :] if part.startswith("labels") else ""
            return _Home(above=folders[:index], below=folders[index + 1 :], suffix=suffix)
        if part.startswith("images") or part in IMAGE_FOLDERS:
            break
    return _Home(above=folders, is_mask_folder=False) if is_named_mask else None


def _fitting(
    mask: str,
    home: _Home,
    by_stem: Mapping[object, Mapping[Folder, list[str]]],
    by_key: Mapping[object, Mapping[Folder, list[str]]],
) -> tuple[str, ...]:
    for index, name in ((by_stem, stem(mask)), (by_key, _key(mask))):
        volumes = index.get(name, {})
        for folder in ((*home.above, *home.below), (*home.above, f"images{home.suffix}", *home.below)):
            if folder in volumes:
                return tuple(volumes[folder])
        if home.is_mask_folder:
            rest = [volume for folder, group in volumes.items() if _is_related(folder, home) for volume in group]
            if rest:
                return tuple(rest)
    return ()


def _is_related(folder: Folder, home: _Home) -> bool:
    """Return whether a folder lies below that of the mask folder and ends with the same subfolders.

    The images of another part (`imagesTs` for `labelsTr`) are not related.
    """
    depth = len(home.above)
    if folder[:depth] != home.above or len(folder) < depth + len(home.below):
        return False
    if folder[len(folder) - len(home.below) :] != home.below:
        return False
    first = folder[depth].lower() if len(folder) > depth else ""
    return not first.startswith("images") or first == f"images{home.suffix}".lower()


def _indexed(images: Sequence[str], name_of: Callable[[str], object]) -> dict[object, dict[Folder, list[str]]]:
    index: dict[object, dict[Folder, list[str]]] = {}
    for image in images:
        index.setdefault(name_of(image), {}).setdefault(_folder(image), []).append(image)
    return index


def _folder(name: str) -> Folder:
    return tuple(name.split("/")[:-1])


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+|[0-9]+", text.lower())


def _key(name: str) -> tuple[str, ...]:
    """Return the words of a file name without those that only mark it as a volume or a mask."""
    return tuple(word for word in _words(stem(name)) if word not in MASK_WORDS | IMAGE_WORDS)


def _seen(image: str, rivals: tuple[tuple[str, ...], tuple[str, ...]] | None, numbers: Mapping[str, int]) -> str:
    if rivals is None:
        return ""
    masks, volumes = ([numbers[name] for name in group] for group in rivals)
    fits = "fits" if len(masks) == 1 else "fit"
    return f"mask {_listed(masks)} {fits} volume {_listed(volumes)}; this is volume {numbers[image]}"


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:6]))
    return f"{shown} and {len(numbers) - 6} more" if len(numbers) > 6 else shown
