#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Explain the classes of a batch of preprocessed images or volumes with Grad-CAM
doc: |
  Writes for each case a map on the source grid (NIfTI, or PNG for 2-D images) of the features that raise the score of the class, and a picture of it,
  with the mass per region if label maps are given, and a sanity check with random weights. Fails if the model has no torch weights or its card does not match the cases.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 14400}  # s
hints:
  # Read by medweave's connectors, ignored by every other runner; cwltool's own CUDARequirement would stop it where there is no GPU.
  medweave:GPURequest: {gpusMin: 0, gpusTotal: $(inputs.gpus)}
baseCommand: [medweave-step, explain]
arguments:
  # Named after the batch: the folders of a scatter are gathered in one folder later.
  - {prefix: --output, valueFrom: explanations-$(inputs.case_batch.basename)}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  classification_model:
    doc: model folder with models/model.safetensors, of train, export, prune, or of gate with a float32 model
    type: Directory
    inputBinding: {prefix: --model}
  case_batch:
    doc: preprocessed cases
    type: Directory
    inputBinding: {prefix: --case-batch}
  target_class:
    doc: name of the class to explain; without it the predicted class of each case
    type: string?
    inputBinding: {prefix: --target-class}
  layer:
    doc: name of the module whose features are weighted; without it the last convolution, or its block, of at least 1/8 of the input's resolution
    type: string?
    inputBinding: {prefix: --layer}
  regions:
    doc: folders of label maps on the source grid or the prepared grid, for the mass per region; <case_id>.nii.gz, or BIDS derivatives
    type: Directory[]?
    inputBinding: {prefix: --regions}
  region_names:
    doc: table with the columns index and name, names of the labels in regions; by default dseg.tsv there
    type: File?
    format: edam:format_3475  # TSV
    inputBinding: {prefix: --region-names}
  sanity_cases:
    doc: number of cases whose maps are compared with those of random weights, 0 for none
    type: int
    default: 8
    inputBinding: {prefix: --sanity-cases}
  sanity_seed:
    doc: random seed of these weights
    type: int
    default: 0
    inputBinding: {prefix: --sanity-seed}
  device:
    doc: auto is a GPU where the job has one that torch can use (auto, cpu, cuda)
    type: {type: enum, symbols: [auto, cpu, cuda]}
    default: auto
    inputBinding: {prefix: --device}
  allow_code:
    doc: run the code of a network that is not part of medweave, with your rights
    type: boolean
    default: false
    inputBinding: {prefix: --allow-code}
  gpus:
    doc: GPUs to request for the job, 0 or 1
    type: int
    default: 0
outputs:
  explanations:
    doc: explanations.json and, per case, <case_id>/explanation_map.nii.gz (2-D images explanation_map.png) and explanation_overlay.png
    type: Directory
    outputBinding: {glob: explanations-$(inputs.case_batch.basename)}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
