#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Take a MONAI Bundle with weights as a model
doc: The result goes where a trained model goes - to export, then gate and segment.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 1, ramMin: 2048}  # MiB
  ToolTimeLimit: {timelimit: 3600}  # s
baseCommand: [medweave-step, bundle]
arguments:
  - {prefix: --output, valueFrom: trained_model}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  monai_bundle:
    doc: folder of the Bundle, with configs/ and models/
    type: Directory
    inputBinding: {prefix: --bundle}
outputs:
  trained_model:
    doc: model folder with weights and card
    type: Directory
    outputBinding: {glob: trained_model}
  run_report:
    doc: what the step did
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
