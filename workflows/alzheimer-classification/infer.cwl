#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Classify T1-weighted brain MR with an existing model, and explain its classes
doc: De-identifies T1-weighted MR, removes everything outside of the given brain masks, and writes calibrated probabilities as CSV (DICOM SR too for DICOM sources, if every group of the model has a code) and Grad-CAM maps. The model card defines the preprocessing.
$namespaces: {edam: "http://edamontology.org/", medweave: "urn:medweave:cwl#"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: T1-weighted MR, a BIDS folder or DICOM series
    type: Directory
  brain_masks:
    doc: folder of brain masks (NIfTI), one for each scan, as a path below the cohort, such as derivatives/brain; BIDS derivatives, or files named after the scans
    type: string
  classification_model:
    doc: accepted_model of train.cwl
    type: Directory
  identified:
    doc: the cohort contains patient identities; it is then de-identified first, and the later steps use the result
    type: boolean
    default: true
  pseudonym_key:
    doc: pseudonym key of an earlier run, for the same pseudonyms, dates and splits; by default each run creates a new key
    type: File?
    format: edam:format_2333  # binary
  regions:
    doc: folders of label maps of brain structures, for the mass of the maps per region; only without identified, which takes the label maps of the cohort
    type: Directory[]
    default: []
  on_error:
    doc: invalid cases, stop after all errors are reported (stop) or skip these cases (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  channels:
    doc: rules that select the DICOM series of a study, as a JSON list; by default each study has one series
    type: File?
    format: edam:format_3464  # JSON
  cases_per_batch:
    doc: maximum number of scans that one job classifies, and that one job explains
    type: int
    default: 32
  backend:
    doc: runtime, the library that runs the network; auto is that of the model card
    type: {type: enum, symbols: [auto, openvino, onnxruntime, torch]}
    default: auto
  explained_class:
    doc: group whose evidence the maps show; by default the predicted group of each scan
    type: string?
  explained_layer:
    doc: name of the module whose features are weighted; by default the last block of at least 1/8 of the input's resolution
    type: string?
  inference_gpus:
    doc: GPUs to request for each job of classify and explain, 0 or 1
    type: int
    default: 0
outputs:
  classifications:
    doc: groups and calibrated probabilities of all scans (CSV, DICOM SR too for DICOM sources, if every group of the model has a code), one folder per batch
    type: Directory[]
    outputSource: classify/classifications
  explanations:
    doc: Grad-CAM maps of all scans on their source grids (NIfTI), pictures, and the mass per region, one folder per batch
    type: Directory[]
    outputSource: explain/explanations
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
      brain_masks_in_cohort: brain_masks
      keep_brain_masks: {default: true}
      on_error: on_error
    out: [deidentified_cohort, kept_label_maps, home, run_report]
  check:
    run: ../tools/check.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
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
      brain_masks_in_cohort: brain_masks  # deidentify keeps the place
      cases_per_batch: cases_per_batch
      segmentation_model: classification_model
    out: [inference_batches, run_report]
  classify:
    run: ../tools/classify.cwl
    scatter: case_batch
    hints: {medweave:Partial: {}}  # a failed batch does not withhold the results of the others; the run reports it and exits with code 3
    in:
      classification_model: classification_model
      case_batch: preprocess/inference_batches
      backend: backend
      gpus: inference_gpus
    out: [classifications, run_report]
  explain:
    run: ../tools/explain.cwl
    scatter: case_batch
    hints: {medweave:Partial: {}}
    in:
      classification_model: classification_model
      case_batch: preprocess/inference_batches
      target_class: explained_class
      layer: explained_layer
      regions:
        source: [deidentify/kept_label_maps, regions]
        linkMerge: merge_flattened
        pickValue: all_non_null  # a cohort needs no label maps
      gpus: inference_gpus
    out: [explanations, run_report]
