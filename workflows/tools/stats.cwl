#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Compare groups of measurements
doc: |
  One-way analysis of variance with Tukey's test and letters for independent values; Wilcoxon signed-rank tests with Holm's correction
  for values paired by patient. Omitted options have the defaults of the verb.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 1, ramMin: 1024}  # MiB
  ToolTimeLimit: {timelimit: 3600}  # s
baseCommand: [medweave-step, stats]
arguments:
  - {prefix: --output, valueFrom: statistics}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  measurements:
    doc: table in long form with a header line, one measurement in each row
    type: File?
    format: edam:format_3752  # CSV
    inputBinding: {prefix: --measurements}
  run_reports:
    doc: run reports of trainings, in place of measurements
    type: File[]?
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --run-reports}
  response:
    doc: column of the measured values
    type: string
    inputBinding: {prefix: --response}
  factor:
    doc: column of the groups
    type: string
    inputBinding: {prefix: --factor}
  patient:
    doc: column of the patients, for paired tests; by default the values are independent
    type: string?
    inputBinding: {prefix: --patient}
  by:
    doc: column whose values are analyzed separately; by default one analysis
    type: string?
    inputBinding: {prefix: --by}
  alpha:
    doc: probability of an error of the first kind over all pairs of an analysis
    type: float?
    inputBinding: {prefix: --alpha}
outputs:
  statistics:
    doc: statistics.json (`medweave schema statistics`), tables (CSV) and fragment.html with box plots
    type: Directory
    outputBinding: {glob: statistics}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
