#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Take a MONAI Bundle with weights as a model
doc: The result goes where a trained model goes - to export, then gate and segment.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 1, ramMin: 2048}  # MiB
  ToolTimeLimit: {timelimit: 3600}  # s
baseCommand: [medweave-step, bundle]
arguments:
  - {prefix: --output, valueFrom: trained_model}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  monai_bundle:
    doc: folder of the Bundle, with configs/ and models/
    type: Directory
    inputBinding: {prefix: --bundle}
  spacing_mm:
    doc: voxel size along I, J, K that the network was trained on, mm, where the Bundle does not say
    type: float[]?
    inputBinding: {prefix: --spacing-mm}
  window_hu:
    doc: lowest and highest value the network sees, HU, where the Bundle does not say
    type: float[]?
    inputBinding: {prefix: --window-hu}
  patch_shape:
    doc: voxels of a network input along I, J, K, where the Bundle does not say
    type: int[]?
    inputBinding: {prefix: --patch-shape}
  labels:
    doc: label of the foreground class with its DICOM codes, the name of a preset (lung-nodule); else the name that the Bundle gives
    type: string?
    inputBinding: {prefix: --labels}
  crop:
    doc: field of view that segment shall feed to the network, the box around the lungs or the whole volume
    type: {type: enum, symbols: [lungs, none]}
    default: none
    inputBinding: {prefix: --crop}
  threshold:
    doc: probability from which a voxel belongs to a lesion
    type: float?
    inputBinding: {prefix: --threshold}
  min_volume_mm3:
    doc: smaller components are dropped, mm³
    type: float?
    inputBinding: {prefix: --min-volume-mm3}
outputs:
  trained_model:
    doc: model folder with weights and card
    type: Directory
    outputBinding: {glob: trained_model}
  run_report:
    doc: what the step did
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
