#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Segment brain tumors with an existing model
doc: Segments a folder of brain MR in the format of MSD Task01, without masks, and writes NIfTI masks and lesion tables. The model card defines the preprocessing.
$namespaces: {edam: "http://edamontology.org/", medweave: "urn:medweave:cwl#"}
requirements:
  ScatterFeatureRequirement: {}
inputs:
  cohort:
    doc: MSD data set of MR, a folder with dataset.json and imagesTr or imagesTs
    type: Directory
  segmentation_model:
    doc: model folder of export
    type: Directory
  merge_labels:
    doc: mask values to merge into one label, for a cohort with masks; the masks are not used
    type: string[]
    default: ["1,2,3:whole tumour"]
  on_error:
    doc: invalid cases, stop after all errors are reported (stop) or skip these cases (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  cases_per_batch:
    doc: maximum number of cases that one job segments
    type: int
    default: 8
  backend:
    doc: inference library
    type: {type: enum, symbols: [openvino, onnxruntime]}
    default: openvino
outputs:
  segmentations:
    doc: masks (NIfTI) and lesion tables (CSV) of all cases, one folder per batch
    type: Directory[]
    outputSource: segment/segmentations
steps:
  check:
    run: ../tools/check.cwl
    in:
      cohort: cohort
      merge_labels: merge_labels
      on_error: on_error
    out: [cohort_index, run_report]
  preprocess:
    run: ../tools/preprocess.cwl
    in:
      cohort: cohort
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
    out: [segmentations, run_report]
