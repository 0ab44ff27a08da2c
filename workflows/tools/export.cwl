#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Export a trained model to ONNX and OpenVINO IR
doc: Compares both with the network in torch and fails if the outputs differ by more than the tolerance.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 2048}  # MiB
  ToolTimeLimit: {timelimit: 3600}  # s
baseCommand: [medweave-step, export]
arguments:
  - {prefix: --output, valueFrom: exported_model}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  trained_model:
    doc: model folder of train or bundle, with weights
    type: Directory
    inputBinding: {prefix: --trained-model}
  allow_code:
    doc: run the code of a network that is not part of medweave (scripts/ of the model folder)
    type: boolean?
    inputBinding: {prefix: --allow-code}
outputs:
  exported_model:
    doc: model folder with ONNX and OpenVINO IR in float32
    type: Directory
    outputBinding: {glob: exported_model}
  run_report:
    doc: run report of the step, with the measured parity
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
