#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Write a synthetic cohort of chest CT with nodules, or of brain MR with tumours
doc: |
  CT series as a scanner would write them, the ground truth as DICOM SEG, the same as an MSD data set; or brains as an MSD data set.
  Everything says that it is synthetic.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 2048}  # MiB
  ToolTimeLimit: {timelimit: 14400}  # s
baseCommand: [medweave-step, phantom]
arguments:
  - {prefix: --output, valueFrom: cohort}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  kind:
    doc: what the scans show (lung, brain)
    type: {type: enum, symbols: [lung, brain]}
    default: lung
    inputBinding: {position: -1}
  cases:
    doc: patients for training and validation
    type: int?
    inputBinding: {prefix: --cases}
  held_out_cases:
    doc: patients for the test split, from a seed of their own
    type: int?
    inputBinding: {prefix: --held-out-cases}
  seed:
    doc: seed of the patients for training and validation
    type: int?
    inputBinding: {prefix: --seed}
  held_out_seed:
    doc: seed of the patients of the test split
    type: int?
    inputBinding: {prefix: --held-out-seed}
  cohort_format:
    doc: files to write (dicom, msd, both); dicom for lung and msd for brain where it is left out
    type: string?  # StreamFlow 0.2.0rc3 refuses an enum without a value
    inputBinding: {prefix: --format}
  transfer_syntax:
    doc: encoding of the DICOM pixels (explicit, rle, jpeg2000)
    type: {type: enum, symbols: [explicit, rle, jpeg2000]}
    default: explicit
    inputBinding: {prefix: --transfer-syntax}
  grid:
    doc: voxels as a scanner makes them (scanner) or coarser (demo)
    type: {type: enum, symbols: [scanner, demo]}
    default: scanner
    inputBinding: {prefix: --grid}
outputs:
  cohort:
    doc: the cohort's folder
    type: Directory
    outputBinding: {glob: cohort}
  run_report:
    doc: what the step did
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
