#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Segment with a model that medweave did not train
doc: Takes a MONAI Bundle with weights, exports it, and runs the inference pipeline with it.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  SubworkflowFeatureRequirement: {}
inputs:
  monai_bundle:
    doc: folder of the Bundle
    type: Directory
  cohort:
    doc: folder with chest CT
    type: Directory
  pseudonym_key:
    doc: key of an earlier run, for the same pseudonyms
    type: File?
    format: edam:format_2333  # binary
  cases_per_batch:
    doc: most cases that one job segments
    type: int
  spacing_mm:
    doc: voxel size along I, J, K that the network was trained on, mm
    type: float[]?
  window_hu:
    doc: lowest and highest value the network sees, HU
    type: float[]?
  patch_shape:
    doc: voxels of a network input along I, J, K
    type: int[]?
  labels:
    doc: label of the foreground class with its DICOM codes, the name of a preset
    type: string?
  crop:
    doc: field of view, lungs or none
    type: {type: enum, symbols: [lungs, none]}
    default: none
  threshold:
    doc: probability from which a voxel belongs to a lesion
    type: float?
  min_volume_mm3:
    doc: smaller components are dropped, mm³
    type: float?
outputs:
  trained_model:
    doc: what bundle made of it
    type: Directory
    outputSource: bundle/trained_model
  segmentations:
    doc: masks and tables of all cases
    type: Directory[]
    outputSource: infer/segmentations
steps:
  bundle:
    run: ../../workflows/tools/bundle.cwl
    in:
      monai_bundle: monai_bundle
      spacing_mm: spacing_mm
      window_hu: window_hu
      patch_shape: patch_shape
      labels: labels
      crop: crop
      threshold: threshold
      min_volume_mm3: min_volume_mm3
    out: [trained_model]
  export:
    run: ../../workflows/tools/export.cwl
    in:
      trained_model: bundle/trained_model
    out: [exported_model]
  infer:
    run: ../../workflows/lung-nodule-segmentation/infer.cwl
    in:
      cohort: cohort
      pseudonym_key: pseudonym_key
      cases_per_batch: cases_per_batch
      segmentation_model: export/exported_model
    out: [segmentations]
