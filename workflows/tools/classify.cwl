#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Classify a batch of preprocessed images, volumes or rows of a table
doc: |
  Runs inference by the runtime of the model card and writes a table of the predicted classes with the calibrated probability of each class,
  and for DICOM sources one DICOM SR per case with the codes of the model card, if every class has one. Fails if the model card does not match the cases.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 2048}  # MiB
  ToolTimeLimit: {timelimit: 14400}  # s
hints:
  # Read by medweave's connectors, ignored by every other runner; cwltool's own CUDARequirement would stop it where there is no GPU.
  medweave:GPURequest: {gpusMin: 0, gpusTotal: $(inputs.gpus)}
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
    doc: runtime, the library that runs the network (auto, openvino, onnxruntime, torch); auto is that of the model card
    type: {type: enum, symbols: [auto, openvino, onnxruntime, torch]}
    default: auto
    inputBinding: {prefix: --backend}
  device:
    doc: auto is a GPU where the job has one and the runtime can use it (auto, cpu, cuda)
    type: {type: enum, symbols: [auto, cpu, cuda]}
    default: auto
    inputBinding: {prefix: --device}
  gpus:
    doc: GPUs to request for the job, 0 or 1
    type: int
    default: 0
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
