#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Turn an identified cohort into a de-identified one
doc: |
  Applies the basic confidentiality profile of DICOM PS3.15 with modified dates, gives folders, files, patients and UIDs
  pseudonyms, and looks for text in the pixels. What leads back to the patients is an output of its own that stays at home.
  Ends with exit code 65 when a case cannot be de-identified, unless it is told to skip such cases.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 2048}  # MiB
  ToolTimeLimit: {timelimit: 14400}  # s
baseCommand: [medweave-step, deidentify]
arguments:
  - {prefix: --output, valueFrom: de-identified}
  - {prefix: --home, valueFrom: home}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  cohort:
    doc: folder with the identified data, DICOM or NIfTI
    type: Directory
    inputBinding: {prefix: --cohort}
  pseudonym_key:
    doc: key of an earlier run, for the same pseudonyms; without it a key is made, which comes out in the folder home
    type: File?
    format: edam:format_2333  # binary
    inputBinding: {prefix: --key}
  retain_patient_characteristics:
    doc: keep sex, age, size, weight, ethnic group, smoking and pregnancy status
    type: boolean
    default: false
    inputBinding: {prefix: --retain-patient-characteristics}
  on_error:
    doc: stop at bad cases after all errors were told, or leave these cases out
    type: {type: enum, symbols: [stop, skip]}
    default: stop
    inputBinding: {prefix: --on-error}
outputs:
  deidentified_cohort:
    doc: the cohort under pseudonyms, which may leave the site
    type: Directory
    outputBinding: {glob: de-identified}
  home:
    doc: who is who, UIDs, date shifts, names of files, and a new key; identified data, stays at home
    type: Directory
    outputBinding: {glob: home}
  run_report:
    doc: what the step did, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
