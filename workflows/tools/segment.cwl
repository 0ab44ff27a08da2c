#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Segment a batch of preprocessed cases
doc: |
  Runs sliding-window inference on the CPU, resamples each mask to its source grid, and writes it as NIfTI and, for DICOM sources,
  as DICOM SEG (a segment for each label) with a DICOM SR of the lesions. Fails if the model card does not match the cases.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 14400}  # s
baseCommand: [medweave-step, segment]
arguments:
  # Named after the batch: the folders of a scatter are gathered in one folder later.
  - {prefix: --output, valueFrom: segmentations-$(inputs.case_batch.basename)}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  segmentation_model:
    doc: model folder; its card fixes labels, precision, window and thresholds
    type: Directory
    inputBinding: {prefix: --segmentation-model, position: 1}
  ensemble:
    doc: further model folders with the same contracts; the probabilities of all models are averaged
    type: Directory[]?
    inputBinding: {position: 2}  # more values of --segmentation-model
  case_batch:
    doc: preprocessed cases
    type: Directory
    inputBinding: {prefix: --case-batch}
  backend:
    doc: inference library (openvino, onnxruntime)
    type: {type: enum, symbols: [openvino, onnxruntime]}
    default: openvino
    inputBinding: {prefix: --backend}
  threshold:
    doc: probability threshold for a voxel of the label or of every region, between 0 and 1; by default the thresholds in the model card
    type: float?
    inputBinding: {prefix: --threshold}
outputs:
  segmentations:
    doc: per case, lesion_mask.nii.gz, lesion_mask.dcm, lesions.csv (volume in mm³, diameter in mm, mean HU) and lesions_sr.dcm
    type: Directory
    outputBinding: {glob: segmentations-$(inputs.case_batch.basename)}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
