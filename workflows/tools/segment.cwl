#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Segment a batch of preprocessed cases
doc: |
  Runs sliding-window inference by the runtime of the model card, resamples each mask to its source grid, and writes it as NIfTI and, for
  DICOM sources, as DICOM SEG (a segment for each label) with a DICOM SR of the lesions. Fails if the model card does not match the cases.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 14400}  # s
hints:
  # Read by medweave's connectors, ignored by every other runner; cwltool's own CUDARequirement would stop it where there is no GPU.
  medweave:GPURequest: {gpusMin: 0, gpusTotal: $(inputs.gpus)}
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
    doc: runtime, the library that runs the network (auto, openvino, onnxruntime, torch); auto is that of the model card
    type: {type: enum, symbols: [auto, openvino, onnxruntime, torch]}
    default: auto
    inputBinding: {prefix: --backend}
  device:
    doc: auto is a GPU where the job has one and the runtime can use it (auto, cpu, cuda)
    type: {type: enum, symbols: [auto, cpu, cuda]}
    default: auto
    inputBinding: {prefix: --device}
  gpus:
    doc: GPUs to request for the job, 0 or 1
    type: int
    default: 0
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
