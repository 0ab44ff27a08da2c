#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Compare segmentations or classifications with the ground truth
doc: |
  Computes Dice, HD95 (mm), NSD at 2 mm, lesion sensitivity and false positives per scan, per case and pooled, with bootstrap
  95 % intervals, from the delivered masks on the source grid. The same metrics of a fixed baseline are reported for comparison.
  For classifications: accuracy, balanced accuracy, F1, ROC-AUC, PR-AUC and calibration, pooled and per class, and the same of a
  baseline (color histograms of images, columns of a table) if there is a training set to fit it on.
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
    doc: cohort folder with the ground truth; only for masks
    type: Directory?
    inputBinding: {prefix: --cohort}
  cohort_index:
    doc: cohort index of check; rows of a table have none
    type: File?
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --cohort-index}
  segmentations:
    doc: output folders of segment, one per batch
    type: Directory[]?
    inputBinding: {prefix: --segmentations}
  classifications:
    doc: output folders of classify, one per batch, instead of segmentations
    type: Directory[]?
    inputBinding: {prefix: --classifications}
  training_set:
    doc: prepared training set that the baseline of a classification is fitted on, color histograms of images or columns of a table
    type: Directory?
    inputBinding: {prefix: --training-set}
  covariates:
    doc: tables (TSV) with sex, age or mmse of the cases, such as participants.tsv; accuracy of a classification by group
    type: File[]?
    format: edam:format_3475  # TSV
    inputBinding: {prefix: --covariates}
  case_batches:
    doc: batches that were segmented or classified
    type: Directory[]
    inputBinding: {prefix: --case-batches}
outputs:
  evaluation:
    doc: metrics.json, per_case.csv, and lesions.csv for masks or per_class.csv for classifications
    type: Directory
    outputBinding: {glob: evaluation}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
