#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Generate a synthetic cohort of chest CT, brain MR, photographs of skin lesions, or chest X-rays
doc: |
  Chest CT series as from a scanner, with the ground truth as DICOM SEG, the same as an MSD data set, or brain MR as an MSD data set.
  Skin lesions have the format of ISIC 2019, chest X-rays that of NIH ChestX-ray14 with DICOM images.
  All files are marked as synthetic.
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
    doc: anatomy, chest CT (lung), brain MR (brain), photographs of skin lesions (skin), or chest X-rays (xray)
    type: {type: enum, symbols: [lung, brain, skin, xray]}
    default: lung
    inputBinding: {position: -1}
  cases:
    doc: number of patients for training and validation
    type: int?
    inputBinding: {prefix: --cases}
  held_out_cases:
    doc: number of patients for the test split, with their own seed
    type: int?
    inputBinding: {prefix: --held-out-cases}
  seed:
    doc: random seed of the patients for training and validation
    type: int?
    inputBinding: {prefix: --seed}
  held_out_seed:
    doc: random seed of the patients of the test split
    type: int?
    inputBinding: {prefix: --held-out-seed}
  cohort_format:
    doc: output format (dicom, msd, both); by default dicom for lung and msd for brain
    type: string?  # StreamFlow 0.2.0rc3 refuses an enum without a value
    inputBinding: {prefix: --format}
  transfer_syntax:
    doc: transfer syntax of the DICOM pixel data (explicit, rle, jpeg2000)
    type: {type: enum, symbols: [explicit, rle, jpeg2000]}
    default: explicit
    inputBinding: {prefix: --transfer-syntax}
  grid:
    doc: voxel grid as from a scanner (scanner), or coarser (demo)
    type: {type: enum, symbols: [scanner, demo]}
    default: scanner
    inputBinding: {prefix: --grid}
  image_size:
    doc: columns and rows of images, for skin and xray
    type: int?
    inputBinding: {prefix: --image-size}
outputs:
  cohort:
    doc: cohort folder
    type: Directory
    outputBinding: {glob: cohort}
  run_report:
    doc: run report of the step
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
