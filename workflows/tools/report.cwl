#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Write metrics, training curves and pictures as a reproducible HTML fragment
doc: Its bytes do not depend on where or when the steps ran. `medweave report` adds that from the event log of the run.
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
    doc: title of the report
    type: string?
    inputBinding: {prefix: --title}
  evaluation:
    doc: output folder of evaluate
    type: Directory
    inputBinding: {prefix: --evaluation}
  segmentations:
    doc: output folders of segment, one per batch; classifications replaces it
    type: Directory[]?
    inputBinding: {prefix: --segmentations}
  classifications:
    doc: output folders of classify, one per batch, instead of segmentations
    type: Directory[]?
    inputBinding: {prefix: --classifications}
  explanations:
    doc: output folders of explain, one per batch, for the maps of a classification
    type: Directory[]?
    inputBinding: {prefix: --explanations}
  case_batches:
    doc: batches that were segmented or classified, for the pictures
    type: Directory[]
    inputBinding: {prefix: --case-batches}
  training_log:
    doc: training log of train
    type: Directory?
    inputBinding: {prefix: --training-log}
  statistics:
    doc: output folder of stats, for its box plots and tables
    type: Directory?
    inputBinding: {prefix: --statistics}
  run_reports:
    doc: run_report.json of the previous steps
    type: File[]
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --run-reports}
outputs:
  report:
    doc: fragment.html (self-contained) and summary.json
    type: Directory
    outputBinding: {glob: report}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
