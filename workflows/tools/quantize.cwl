#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Make an int8 candidate of an exported model
doc: Calibrates on training cases. A candidate is not a better model - gate decides that, on the machine that segments.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 7200}  # s
baseCommand: [medweave-step, quantize]
arguments:
  - {prefix: --output, valueFrom: int8_candidate}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  exported_model:
    doc: model folder with OpenVINO IR in float32
    type: Directory
    inputBinding: {prefix: --exported-model}
  training_set:
    doc: prepared cases; the calibration takes windows of the training split
    type: Directory
    inputBinding: {prefix: --training-set}
outputs:
  int8_candidate:
    doc: model folder in int8, with the digest of its parent
    type: Directory
    outputBinding: {glob: int8_candidate}
  run_report:
    doc: what the step did, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
