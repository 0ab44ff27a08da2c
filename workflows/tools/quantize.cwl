#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Quantize an exported model to an int8 candidate
doc: |
  Calibrates activation ranges on training cases, for OpenVINO (nncf) or as an ONNX graph (three-step, ort-static).
  gate accepts or refuses the candidate on the machine that runs segment.
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
  method:
    doc: nncf (OpenVINO IR, the default), three-step (ONNX, by the three steps of the DeepHealth paper) or ort-static (ONNX Runtime)
    type: string?  # StreamFlow 0.2.0rc3 refuses an enum without a value
    inputBinding: {prefix: --method}
  threshold:
    doc: of three-step, where activations are clipped (max, percentile, minimum-mse, kl); by default minimum-mse
    type: string?  # as `method`
    inputBinding: {prefix: --threshold}
  windows:
    doc: number of calibration windows; by default 16, and 200 for three-step
    type: int?
    inputBinding: {prefix: --windows}
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
