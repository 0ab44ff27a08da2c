#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: De-identify a cohort
doc: |
  Applies the Basic Application Level Confidentiality Profile of DICOM PS3.15 with modified dates, replaces the names of
  folders, files and patients and the UIDs by pseudonyms, and searches the pixels for burned-in text. The re-identification map
  is a separate output that must stay at the source site. Exits with code 65 if a case cannot be de-identified, unless on_error is skip:
  a scan or photograph that may show a face is such a case, because the output has the data class de-identified.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 2048}  # MiB
  ToolTimeLimit: {timelimit: 14400}  # s
baseCommand: [medweave-step, deidentify]
arguments:
  - {prefix: --output, valueFrom: de-identified}
  - {prefix: --home, valueFrom: home}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
  - --require-deidentified
inputs:
  cohort:
    doc: folder with the identified cohort, DICOM, NIfTI, or photographs (JPEG, PNG)
    type: Directory
    inputBinding: {prefix: --cohort}
  pseudonym_key:
    doc: pseudonym key of an earlier run, for the same pseudonyms; by default a new key, written to the folder home
    type: File?
    format: edam:format_2333  # binary
    inputBinding: {prefix: --key}
  retain_patient_characteristics:
    doc: retain sex, age, size, weight, ethnic group, smoking and pregnancy status; of tables about images age and sex
    type: boolean
    default: false
    inputBinding: {prefix: --retain-patient-characteristics}
  keep_columns:
    doc: columns of participants.tsv to keep, such as group and mmse; only numbers, or few words that several subjects have
    type: string[]?
    inputBinding: {prefix: --keep-columns}
  faces:
    doc: |
      whether scans or photographs show faces; auto uses cohort_card.json, else the DICOM headers; absent if they show another part
      of the body, or were defaced or skull-stripped before, or if no photograph shows a face or a tattoo
    type: {type: enum, symbols: [auto, present, absent]}
    default: auto
    inputBinding: {prefix: --faces}
  brain_masks:
    doc: brain masks (NIfTI); all voxels outside are removed from their scans
    type: Directory?
    inputBinding: {prefix: --brain-masks}
  brain_masks_in_cohort:
    doc: folder of brain masks as a path below the cohort, such as derivatives/brain, instead of brain_masks
    type: string?
    inputBinding: {prefix: --brain-masks}
  keep_brain_masks:
    doc: write the brain masks under the pseudonyms of their cases, for preprocess, into the same folder below the output or into brain-masks; needs brain masks
    type: boolean
    default: false
    inputBinding: {prefix: --keep-brain-masks}
  on_error:
    doc: invalid cases, stop after all errors are reported (stop) or skip these cases (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
    inputBinding: {prefix: --on-error}
outputs:
  deidentified_cohort:
    doc: de-identified cohort, which may leave the site
    type: Directory
    outputBinding: {glob: de-identified}
  kept_label_maps:
    doc: label maps and masks of a BIDS cohort under the pseudonyms of their cases (derivatives/masks), or none
    type: Directory[]
    outputBinding: {glob: de-identified/derivatives/masks}
  kept_participants:
    doc: participants.tsv with the pseudonyms and the kept columns, or none
    type: File[]
    format: edam:format_3475  # TSV
    outputBinding: {glob: de-identified/participants.tsv}
  home:
    doc: re-identification map (patients, UIDs, date shifts, file names) and a new key; identified data, keep it inside your institution
    type: Directory
    outputBinding: {glob: home}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
