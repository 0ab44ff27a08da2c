#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Segment lung nodules with an existing model
doc: De-identifies and segments a folder of chest CT, without masks, and writes the nodules as DICOM SEG, NIfTI and tables. The model card defines the preprocessing.
$namespaces: {edam: "http://edamontology.org/", medweave: "urn:medweave:cwl#"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with chest CT (DICOM series or NIfTI)
    type: Directory
  segmentation_model:
    doc: model folder of gate or export
    type: Directory
  identified:
    doc: the cohort contains patient identities; it is then de-identified first, and the later steps use the result
    type: boolean
    default: true
  pseudonym_key:
    doc: pseudonym key of an earlier run, for the same pseudonyms, dates and splits; by default each run creates a new key
    type: File?
    format: edam:format_2333  # binary
  faces:
    doc: whether scans show faces, with identified; auto uses the cohort card, else the headers; absent for scans of the chest alone
    type: {type: enum, symbols: [auto, present, absent]}
    default: auto
  labels:
    doc: preset for the labels of the masks with their DICOM codes
    type: string
    default: lung-nodule
  label_file:
    doc: labels of the masks as a JSON list of value, name, category, type, anatomy and laterality; replaces the preset
    type: File?
    format: edam:format_3464  # JSON
  merge_labels:
    doc: mask values to merge into one label, such as "1,2:nodule"; labels are never merged silently
    type: string[]?
  on_error:
    doc: invalid cases, stop after all errors are reported (stop) or skip these cases (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  cases_per_batch:
    doc: maximum number of cases that one job segments
    type: int
    default: 8
  backend:
    doc: runtime, the library that runs the network; auto is that of the model card
    type: {type: enum, symbols: [auto, openvino, onnxruntime, torch]}
    default: auto
  device:
    doc: auto is a GPU where the job has one and the runtime can use it
    type: {type: enum, symbols: [auto, cpu, cuda]}
    default: auto
  inference_gpus:
    doc: GPUs to request for each job of inference, 0 or 1
    type: int
    default: 0
  threshold:
    doc: probability threshold for a lesion voxel, between 0 and 1; by default the threshold in the model card
    type: float?
outputs:
  segmentations:
    doc: masks (NIfTI, DICOM SEG) and lesion tables (CSV, DICOM SR) of all cases, one folder per batch
    type: Directory[]
    outputSource: segment/segmentations
  home:
    doc: re-identification map and a new key; identified data, keep it inside your institution
    type: Directory?
    outputSource: deidentify/home
steps:
  deidentify:
    run: ../tools/deidentify.cwl
    when: $(inputs.identified)
    in:
      identified: identified
      cohort: cohort
      pseudonym_key: pseudonym_key
      faces: faces
      on_error: on_error
    out: [deidentified_cohort, home, run_report]
  check:
    run: ../tools/check.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
      labels: labels
      label_file: label_file
      merge_labels: merge_labels
      on_error: on_error
    out: [cohort_index, run_report]
  preprocess:
    run: ../tools/preprocess.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
      cohort_index: check/cohort_index
      purpose: {default: inference}
      cases_per_batch: cases_per_batch
      segmentation_model: segmentation_model
    out: [inference_batches, run_report]
  segment:
    run: ../tools/segment.cwl
    scatter: case_batch
    hints: {medweave:Partial: {}}  # a failed batch does not withhold the masks of the others; the run reports it and exits with code 3
    in:
      segmentation_model: segmentation_model
      case_batch: preprocess/inference_batches
      backend: backend
      device: device
      gpus: inference_gpus
      threshold: threshold
    out: [segmentations, run_report]
