#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Quantize an exported model to an int8 candidate
doc: Calibrates activation ranges on training cases. gate accepts or refuses the candidate on the machine that runs segment.
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
    doc: preprocessed cases; calibration windows come from the training split
    type: Directory
    inputBinding: {prefix: --training-set}
outputs:
  int8_candidate:
    doc: int8 model folder, with the digest of its parent model
    type: Directory
    outputBinding: {glob: int8_candidate}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
