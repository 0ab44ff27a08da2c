#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Segment brain tumours with a model that exists
doc: From a folder of brain MR in the format of MSD Task01, without masks, to the tumours as NIfTI and tables. The model's card says how the MR is prepared.
$namespaces: {edam: "http://edamontology.org/", medweave: "urn:medweave:cwl#"}
requirements:
  ScatterFeatureRequirement: {}
inputs:
  cohort:
    doc: folder of an MSD data set of MR, dataset.json with imagesTr or imagesTs
    type: Directory
  segmentation_model:
    doc: model folder that export wrote
    type: Directory
  merge_labels:
    doc: values of the masks that count as one label, and its name, for a cohort that has masks; these are not used
    type: string[]
    default: ["1,2,3:whole tumour"]
  on_error:
    doc: stop at bad cases after all findings were told, or skip these cases
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  cases_per_batch:
    doc: most cases that one job segments
    type: int
    default: 8
  backend:
    doc: program that computes the network
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
    hints: {medweave:Partial: {}}  # a batch that fails does not keep the others' masks back; the run says so and ends with 3
    in:
      segmentation_model: segmentation_model
      case_batch: preprocess/inference_batches
      backend: backend
    out: [segmentations, run_report]
