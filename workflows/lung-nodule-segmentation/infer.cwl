#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Segment lung nodules with a model that exists
doc: From a folder of chest CT, without masks, de-identified first, to nodules as DICOM SEG, NIfTI and tables. The model's card says how the CT is prepared.
$namespaces: {edam: "http://edamontology.org/", medweave: "urn:medweave:cwl#"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with chest CT (DICOM series or NIfTI)
    type: Directory
  segmentation_model:
    doc: model folder that gate accepted, or export wrote
    type: Directory
  identified:
    doc: whether the cohort names people; it is de-identified first, then, and the later steps get the result
    type: boolean
    default: true
  pseudonym_key:
    doc: key of an earlier run, for the same pseudonyms, dates and draw of patients; without it each run makes its own
    type: File?
    format: edam:format_2333  # binary
  labels:
    doc: labels of the masks with their DICOM codes, the name of a preset
    type: string
    default: lung-nodule
  label_file:
    doc: labels of the masks as a JSON list of value, name, category, type, anatomy and laterality, in the place of a preset
    type: File?
    format: edam:format_3464  # JSON
  merge_labels:
    doc: values of the masks that count as one label, and its name, such as "1,2:nodule"; labels are never merged without it
    type: string[]?
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
  threshold:
    doc: probability from which a voxel of a segmented case belongs to a lesion, between 0 and 1; without it the one on the model's card
    type: float?
outputs:
  segmentations:
    doc: masks (NIfTI, DICOM SEG) and lesion tables (CSV, DICOM SR) of all cases, one folder per batch
    type: Directory[]
    outputSource: segment/segmentations
  home:
    doc: who is who, and a new key; identified data, for those who hold the cohort, and for nobody else
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
    hints: {medweave:Partial: {}}  # a batch that fails does not keep the others' masks back; the run says so and ends with 3
    in:
      segmentation_model: segmentation_model
      case_batch: preprocess/inference_batches
      backend: backend
      threshold: threshold
    out: [segmentations, run_report]
