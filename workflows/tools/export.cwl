#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Write a trained model as ONNX and OpenVINO IR
doc: Compares both with the network in torch and refuses an export that differs by more than the tolerance.
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
    doc: model folder with weights, as train and bundle write it
    type: Directory
    inputBinding: {prefix: --trained-model}
outputs:
  exported_model:
    doc: the same model folder, with ONNX and OpenVINO IR in float32
    type: Directory
    outputBinding: {glob: exported_model}
  run_report:
    doc: what the step did, with the parity that was measured
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
