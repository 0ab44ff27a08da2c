#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Segment a batch of prepared cases
doc: |
  Predicts window by window on the CPU, restores each mask to the grid of its source, and writes it as NIfTI and, for DICOM sources,
  as DICOM SEG with a DICOM SR of the lesions. Refuses a model whose card does not fit the cases.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 14400}  # s
baseCommand: [medweave-step, segment]
arguments:
  # Named after the batch: the folders of a scatter meet in one place later.
  - {prefix: --output, valueFrom: segmentations-$(inputs.case_batch.basename)}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  segmentation_model:
    doc: model folder; its card pins precision, window and threshold
    type: Directory
    inputBinding: {prefix: --segmentation-model}
  case_batch:
    doc: prepared cases
    type: Directory
    inputBinding: {prefix: --case-batch}
  backend:
    doc: program that computes the network (openvino, onnxruntime)
    type: {type: enum, symbols: [openvino, onnxruntime]}
    default: openvino
    inputBinding: {prefix: --backend}
  threshold:
    doc: probability from which a voxel belongs to a lesion, between 0 and 1; without it the one on the model's card
    type: float?
    inputBinding: {prefix: --threshold}
outputs:
  segmentations:
    doc: per case lesion_mask.nii.gz, lesion_mask.dcm, lesions.csv (volume mm³, diameter mm, mean HU) and lesions_sr.dcm
    type: Directory
    outputBinding: {glob: segmentations-$(inputs.case_batch.basename)}
  run_report:
    doc: what the step did, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
