#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Classify the heart rhythm of ECG recordings with an existing model
doc: |
  De-identifies a folder of ECG recordings without known rhythms, cuts samples of five heartbeats, classifies them, and writes the
  rhythms of recordings and samples with their calibrated probabilities as CSV. The model card must have the lead of the recordings.
$namespaces: {edam: "http://edamontology.org/", medweave: "urn:medweave:cwl#"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with ECG recordings of one lead (WFDB, .hea with .mat or .dat); REFERENCE.csv is not needed
    type: Directory
  classification_model:
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
  on_error:
    doc: invalid recordings, stop after all errors are reported (stop) or skip these recordings (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  cases_per_batch:
    doc: number of samples that one job classifies at most; those of one recording stay together
    type: int
    default: 256
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
  classifications:
    doc: classes and calibrated probabilities of all recordings and samples (CSV), one folder per batch
    type: Directory[]
    outputSource: classify/classifications
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
      on_error: on_error
    out: [deidentified_cohort, home, run_report]
  check:
    run: ../tools/check.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
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
      device: device
      gpus: inference_gpus
    out: [classifications, run_report]
