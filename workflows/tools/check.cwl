#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Validate a cohort of CT, MR or PET volumes, or of images
doc: |
  Reads every volume of the folder (DICOM, NIfTI, BIDS, MSD or nnU-Net data set) or every image (JPEG, PNG, CR, DX, MG) and writes the cohort index for the later steps.
  Exits with code 65 and the list of all errors if a case is invalid, unless on_error is skip.
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
    doc: cohort folder with the volumes or images and, if available, their masks or table of classes
    type: Directory
    inputBinding: {prefix: --cohort}
  labels:
    doc: preset (lung-nodule) for the labels of the masks with their DICOM codes; by default the names that the cohort declares, without codes
    type: string?
    inputBinding: {prefix: --labels}
  label_file:
    doc: labels of the masks as a JSON list of value, name, category, type, anatomy and laterality; replaces the preset
    type: File?
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --labels, position: 1}  # after a preset, which the file replaces
  merge_labels:
    doc: mask values to merge into one label, such as "1,2:tumor"; labels are never merged silently
    type: string[]?
    inputBinding: {prefix: --merge-labels}
  ignore_label:
    doc: mask value of voxels without annotation, which count in no loss and no metric; by default the one that an nnU-Net data set declares
    type: int?
    inputBinding: {prefix: --ignore-label}
  channels:
    doc: rules that group the DICOM series of a study into named channels of MR or PET, or the names of the NIfTI channels to read, as a JSON list; by default each study has one series
    type: File?
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --channels}
  targets:
    doc: table of targets (CSV) for a classification; by default the only such table of a cohort of images, and none for volumes
    type: File?
    format: edam:format_3752  # CSV
    inputBinding: {prefix: --targets}
  targets_in_cohort:
    doc: the table of targets as a path below the cohort, such as participants.tsv, instead of targets
    type: string?
    inputBinding: {prefix: --targets}
  classes:
    doc: classes of the table of targets to keep, such as AD and NC; cases of other classes are left out and counted
    type: string[]?
    inputBinding: {prefix: --classes}
  on_error:
    doc: invalid cases, stop after all errors are reported (stop) or skip these cases (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
    inputBinding: {prefix: --on-error}
outputs:
  cohort_index:
    doc: cohort index, every usable case with its files, grid and digests; it contains file names, so keep it with the data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: cohort_index.json}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
