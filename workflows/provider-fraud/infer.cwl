#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Classify the claims of providers with an existing model
doc: |
  Encodes all rows of a table by the encoder of the model and writes the class and the calibrated probabilities of each row as CSV. The table
  needs no classes. It must have every column that the encoder reads; categories that the training rows did not have are reported.
$namespaces: {edam: "http://edamontology.org/", medweave: "urn:medweave:cwl#"}
requirements:
  ScatterFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with the tables
    type: Directory
  tables:
    doc: names of tables with the same columns, below the folder
    type: string[]
    default: [claims.tsv]
  classification_model:
    doc: model folder of export, with the encoder of the columns
    type: Directory
  rows_per_part:
    doc: maximum number of rows that one job classifies
    type: int?
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
    doc: classes and probabilities of all rows (CSV), one folder per batch
    type: Directory[]
    outputSource: classify/classifications
steps:
  encode_table:
    run: ../tools/encode-table.cwl
    in:
      cohort: cohort
      tables: tables
      trained_model: classification_model
      rows_per_part: rows_per_part
    out: [inference_batches, run_report]
  classify:
    run: ../tools/classify.cwl
    scatter: case_batch
    hints: {medweave:Partial: {}}  # a failed batch does not withhold the results of the others; the run reports it and exits with code 3
    in:
      classification_model: classification_model
      case_batch: encode_table/inference_batches
      backend: backend
      device: device
      gpus: inference_gpus
    out: [classifications, run_report]
