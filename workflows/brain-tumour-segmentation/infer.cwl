#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Segment brain tumors with an existing model
doc: Segments a folder of brain MR, without masks, and writes the tumors as NIfTI, for DICOM sources as DICOM SEG and SR, and as tables. The model card defines the preprocessing.
$namespaces: {edam: "http://edamontology.org/", medweave: "urn:medweave:cwl#"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with brain MR (MSD or nnU-Net data set, DICOM series, or NIfTI)
    type: Directory
  segmentation_model:
    doc: model folder of gate or export
    type: Directory
  identified:
    doc: the cohort contains patient identities; it is then de-identified first, and the later steps use the result
    type: boolean
    default: false
  pseudonym_key:
    doc: pseudonym key of an earlier run, for the same pseudonyms, dates and splits; by default each run creates a new key
    type: File?
    format: edam:format_2333  # binary
  brain_masks:
    doc: brain masks (NIfTI), with identified; all voxels outside are removed, so that no face is left
    type: Directory?
  faces:
    doc: whether scans show faces, with identified; auto uses the cohort card, else the headers; absent for skull-stripped or defaced scans
    type: {type: enum, symbols: [auto, present, absent]}
    default: auto
  merge_labels:
    doc: mask values to merge into one label, for a cohort with masks; the masks are not used
    type: string[]
    default: ["1,2,3:whole tumour"]
  channels:
    doc: rules that group the DICOM series of a study into named channels, or the names of the NIfTI channels to read, as a JSON list; not needed for an MSD data set
    type: File?
    format: edam:format_3464  # JSON
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
outputs:
  segmentations:
    doc: masks (NIfTI, for DICOM sources DICOM SEG) and lesion tables (CSV, DICOM SR) of all cases, one folder per batch
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
      brain_masks: brain_masks
      faces: faces
      on_error: on_error
    out: [deidentified_cohort, home, run_report]
  check:
    run: ../tools/check.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
      merge_labels: merge_labels
      channels: channels
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
    out: [segmentations, run_report]
