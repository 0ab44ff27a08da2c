#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Reorient, resample, crop and split a cohort
doc: |
  Resamples every case to one voxel size (mm), clips CT to one HU window, normalizes each MR contrast to mean 0 and standard deviation 1,
  stores the inverse transform to the source grid, and splits by patient.
  Scales images to one size, from 0 to 1.
  Omitted options have the defaults of the verb, or the values of the model that will segment or classify the cases.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 43200}  # s
baseCommand: [medweave-step, preprocess]
arguments:
  - {prefix: --output, valueFrom: prepared}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  cohort:
    doc: cohort folder that check validated
    type: Directory
    inputBinding: {prefix: --cohort}
  cohort_index:
    doc: cohort index of check
    type: File
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --cohort-index}
  purpose:
    doc: training (training set and test batches) or inference (all cases in batches, no masks needed)
    type: {type: enum, symbols: [training, inference]}
    default: training
    inputBinding: {prefix: --purpose}
  spacing_mm:
    doc: voxel size after resampling along Right, Anterior, Superior, mm
    type: float[]?
    inputBinding: {prefix: --spacing-mm}
  spacing_rule:
    doc: spacing_mm or its default (fixed), or the voxel size of nnU-Net's rule for the scans of the cohort (nnunet)
    type: {type: enum, symbols: [fixed, nnunet]}
    default: fixed
    inputBinding: {prefix: --spacing-rule}
  window_hu:
    doc: intensity window (low, high) after resampling, HU
    type: float[]?
    inputBinding: {prefix: --window-hu}
  crop:
    doc: field of view, the box around the lungs (lungs), the whole volume (none), or the volume cropped to multiples of 8 voxels (multiple-of-8)
    type: string?  # lungs, none or multiple-of-8; `shape` needs no value; StreamFlow 0.2.0rc3 refuses an enum without a value
    inputBinding: {prefix: --crop}
  margin_mm:
    doc: margin around the lungs when cropping, mm
    type: float?
    inputBinding: {prefix: --margin-mm}
  shape:
    doc: voxels of MR or PET volumes along Right, Anterior, Superior, for a classification; cropped and padded with 0
    type: int[]?
    inputBinding: {prefix: --shape}
  brain_masks:
    doc: brain masks (NIfTI), one for each case of MR or PET; voxels outside become 0, and the normalization uses voxels inside
    type: Directory?
    inputBinding: {prefix: --brain-masks}
  brain_masks_in_cohort:
    doc: folder of brain masks as a path below the cohort, such as derivatives/brain, instead of brain_masks
    type: string?
    inputBinding: {prefix: --brain-masks}
  bias_correction:
    doc: correction of each MR contrast for its bias field, by N4 inside of the brain mask (n4), or none; by default none, or the model's
    type: string?  # as crop
    inputBinding: {prefix: --bias-correction}
  image_size:
    doc: columns and rows of prepared images, pixels; only for a cohort of images
    type: int[]?
    inputBinding: {prefix: --image-size}
  fractions:
    doc: fractions of patients for training, validation and test, with sum 1
    type: float[]?
    inputBinding: {prefix: --fractions}
  split_seed:
    doc: random seed of the assignment of patients to splits
    type: int?
    inputBinding: {prefix: --split-seed}
  cases_per_batch:
    doc: maximum number of cases in one inference batch; samples of one ECG recording stay together
    type: int?
    inputBinding: {prefix: --cases-per-batch}
  segmentation_model:
    doc: model that will segment or classify the cases; spacing, window, crop and image size are taken from its card
    type: Directory?
    inputBinding: {prefix: --segmentation-model}
outputs:
  training_set:
    doc: preprocessed cases of the training and validation split (none with purpose inference)
    type: Directory
    outputBinding: {glob: prepared/training_set}
  inference_batches:
    doc: preprocessed cases to segment or classify, in batches
    type: Directory[]
    outputBinding: {glob: "prepared/inference_batches/batch-*"}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
