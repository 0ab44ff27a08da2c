#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Compare segmentations with the ground truth
doc: |
  Dice, HD95 (mm), NSD at 2 mm, lesion sensitivity and false positives per scan, per case and pooled, with bootstrap 95 % intervals,
  on the source grid and from the masks as they were delivered, beside a fixed baseline.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 2048}  # MiB
  ToolTimeLimit: {timelimit: 14400}  # s
baseCommand: [medweave-step, evaluate]
arguments:
  - {prefix: --output, valueFrom: evaluation}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  cohort:
    doc: folder of the cohort, which holds the ground truth
    type: Directory
    inputBinding: {prefix: --cohort}
  cohort_index:
    doc: what check wrote about it
    type: File
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --cohort-index}
  segmentations:
    doc: what segment wrote, one folder per batch
    type: Directory[]
    inputBinding: {prefix: --segmentations}
  case_batches:
    doc: the batches that were segmented
    type: Directory[]
    inputBinding: {prefix: --case-batches}
outputs:
  evaluation:
    doc: metrics.json, per_case.csv, lesions.csv
    type: Directory
    outputBinding: {glob: evaluation}
  run_report:
    doc: what the step did, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
