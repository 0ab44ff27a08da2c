#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Say what a cohort of CT holds and what is wrong with it
doc: |
  Reads every volume of the folder (DICOM, NIfTI or an MSD data set) and writes the index that the later steps work from.
  Ends with exit code 65 and the list of all findings when a case cannot be used, unless it is told to skip such cases.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 1024}  # MiB
  ToolTimeLimit: {timelimit: 7200}  # s
baseCommand: [medweave-step, check]
arguments:
  - {prefix: --output, valueFrom: cohort_index.json}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  cohort:
    doc: folder with the CT volumes, and their masks where there are any
    type: Directory
    inputBinding: {prefix: --cohort}
  labels:
    doc: labels of the masks with their DICOM codes, the name of a preset (lung-nodule); else the names that the cohort declares, without codes
    type: string?
    inputBinding: {prefix: --labels}
  label_file:
    doc: labels of the masks as a JSON list of value, name, category, type, anatomy and laterality, in the place of a preset
    type: File?
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --labels, position: 1}  # after a preset, which the file replaces
  merge_labels:
    doc: values of the masks that count as one label, and its name, such as "1,2:tumor"; labels are never merged without it
    type: string[]?
    inputBinding: {prefix: --merge-labels}
  on_error:
    doc: stop at bad cases after all findings were told, or skip these cases
    type: {type: enum, symbols: [stop, skip]}
    default: stop
    inputBinding: {prefix: --on-error}
outputs:
  cohort_index:
    doc: every usable case with its files, grid and digests; it names files, so it stays with the data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: cohort_index.json}
  run_report:
    doc: what the step did, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
