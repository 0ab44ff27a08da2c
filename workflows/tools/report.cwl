#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Put metrics, curves and overlays into the report's deterministic part
doc: Nothing in it depends on where or when the steps ran; `medweave report` adds that from the run's event log.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 1, ramMin: 1024}  # MiB
  ToolTimeLimit: {timelimit: 3600}  # s
baseCommand: [medweave-step, report]
arguments:
  - {prefix: --output, valueFrom: report}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  title:
    doc: heading of the report
    type: string?
    inputBinding: {prefix: --title}
  evaluation:
    doc: what evaluate wrote
    type: Directory
    inputBinding: {prefix: --evaluation}
  segmentations:
    doc: what segment wrote, one folder per batch
    type: Directory[]
    inputBinding: {prefix: --segmentations}
  case_batches:
    doc: the batches that were segmented, for the overlays
    type: Directory[]
    inputBinding: {prefix: --case-batches}
  training_log:
    doc: what train wrote about its course
    type: Directory?
    inputBinding: {prefix: --training-log}
  run_reports:
    doc: run_report.json of the steps before
    type: File[]
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --run-reports}
outputs:
  report:
    doc: fragment.html, which needs no other file, and summary.json
    type: Directory
    outputBinding: {glob: report}
  run_report:
    doc: what the step did, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
