#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Classify images with an existing model
doc: De-identifies and classifies a folder of images, without a table of targets, and writes calibrated probabilities as CSV, and DICOM SR for DICOM sources if every class of the model has a code. The model card defines the preprocessing.
$namespaces: {edam: "http://edamontology.org/", medweave: "urn:medweave:cwl#"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with images (JPEG, PNG, or DICOM CR, DX, MG)
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
  faces:
    doc: whether images show faces or other marks of a person, with identified; auto uses the cohort card, else the headers; absent after you looked at every photograph
    type: {type: enum, symbols: [auto, present, absent]}
    default: auto
  on_error:
    doc: invalid cases, stop after all errors are reported (stop) or skip these cases (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  cases_per_batch:
    doc: maximum number of images that one job classifies
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
    doc: classes and calibrated probabilities of all images (CSV, DICOM SR too for DICOM sources, if every class of the model has a code), one folder per batch
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
      faces: faces
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
