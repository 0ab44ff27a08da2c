#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Orient, resample, crop and split a cohort
doc: |
  Brings every case to one voxel size (mm) and one range of HU, or each contrast of MR to mean 0 and standard deviation 1, keeps the way back to the source grid, and splits by patient.
  Options that are left out take the defaults of the verb, or those of the model that will segment the cases.
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
    doc: the folder that check was given
    type: Directory
    inputBinding: {prefix: --cohort}
  cohort_index:
    doc: what check wrote about it
    type: File
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --cohort-index}
  purpose:
    doc: training (train and validation cases for training, test cases in batches) or inference (all cases in batches, no mask needed)
    type: {type: enum, symbols: [training, inference]}
    default: training
    inputBinding: {prefix: --purpose}
  spacing_mm:
    doc: voxel size of the prepared volumes along Right, Anterior, Superior, mm
    type: float[]?
    inputBinding: {prefix: --spacing-mm}
  window_hu:
    doc: lowest and highest value kept, HU
    type: float[]?
    inputBinding: {prefix: --window-hu}
  crop:
    doc: field of view, the box around the lungs (lungs), the whole volume (none), or as much of it as has sides of multiples of 8 voxels
    type: string?  # lungs, none or multiple-of-8; StreamFlow 0.2.0rc3 refuses an enum without a value
    inputBinding: {prefix: --crop}
  margin_mm:
    doc: distance kept around the lungs when cropping, mm
    type: float?
    inputBinding: {prefix: --margin-mm}
  fractions:
    doc: shares of patients for training, validation and test, with sum 1
    type: float[]?
    inputBinding: {prefix: --fractions}
  split_seed:
    doc: seed of the draw of patients into splits
    type: int?
    inputBinding: {prefix: --split-seed}
  cases_per_batch:
    doc: most cases in one batch for inference
    type: int?
    inputBinding: {prefix: --cases-per-batch}
  segmentation_model:
    doc: model that will segment the cases; spacing, window and crop are those of its card
    type: Directory?
    inputBinding: {prefix: --segmentation-model}
outputs:
  training_set:
    doc: prepared cases of the training and validation split (none when the purpose is inference)
    type: Directory
    outputBinding: {glob: prepared/training_set}
  inference_batches:
    doc: prepared cases to segment, in batches
    type: Directory[]
    outputBinding: {glob: "prepared/inference_batches/batch-*"}
  run_report:
    doc: what the step did, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
