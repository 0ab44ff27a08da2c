#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Classify a batch of preprocessed images or volumes
doc: |
  Runs inference on the CPU and writes a table of the predicted classes with the calibrated probability of each class, and for
  DICOM sources one DICOM SR per case with the codes of the model card, if every class has one. Fails if the model card does not match the cases.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 2048}  # MiB
  ToolTimeLimit: {timelimit: 14400}  # s
baseCommand: [medweave-step, classify]
arguments:
  # Named after the batch: the folders of a scatter are gathered in one folder later.
  - {prefix: --output, valueFrom: classifications-$(inputs.case_batch.basename)}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  classification_model:
    doc: model folder; its card fixes classes, precision, temperature and thresholds
    type: Directory
    inputBinding: {prefix: --model}
  case_batch:
    doc: preprocessed cases
    type: Directory
    inputBinding: {prefix: --case-batch}
  backend:
    doc: inference library (openvino, onnxruntime)
    type: {type: enum, symbols: [openvino, onnxruntime]}
    default: openvino
    inputBinding: {prefix: --backend}
outputs:
  classifications:
    doc: classifications.csv, classifications.json and, for DICOM sources, <case_id>/classification_sr.dcm
    type: Directory
    outputBinding: {glob: classifications-$(inputs.case_batch.basename)}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
