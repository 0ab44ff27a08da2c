#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Import a MONAI Bundle with weights or an ONNX file as a model
doc: Writes a model folder, of a Bundle for export, then gate and segment; of an ONNX file for gate and segment at once.
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
    doc: Bundle folder, with configs/ and models/
    type: Directory?
    inputBinding: {prefix: --bundle}
  onnx_file:
    doc: ONNX file, in place of a Bundle; it holds all weights
    type: File?
    format: edam:format_2333  # binary; EDAM has no format of ONNX
    inputBinding: {prefix: --from-onnx}
  contract:
    doc: input, output, labels or classes and postprocessing of the ONNX file; by default its metadata, as export writes them
    type: File?
    format: edam:format_3750  # YAML
    inputBinding: {prefix: --contract}
  spacing_mm:
    doc: voxel size along I, J, K that the network was trained on, mm; required if the Bundle does not state it
    type: float[]?
    inputBinding: {prefix: --spacing-mm}
  window_hu:
    doc: intensity window (low, high) of the network input, HU; required if the Bundle does not state it
    type: float[]?
    inputBinding: {prefix: --window-hu}
  patch_shape:
    doc: size of a network input along I, J, K, in voxels; required if the Bundle does not state it
    type: int[]?
    inputBinding: {prefix: --patch-shape}
  labels:
    doc: preset (lung-nodule) for the label of the foreground class with its DICOM codes; by default the name in the Bundle
    type: string?
    inputBinding: {prefix: --labels}
  label_file:
    doc: JSON file with the labels of the foreground channels and their DICOM codes, in place of labels
    type: File?
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --labels, position: 1}  # after a preset, which the file replaces
  regions:
    doc: labels that each of several sigmoid channels unites, in the order of the channels, such as "tumor core:1,3"
    type: string[]?
    inputBinding: {prefix: --regions}
  channel_names:
    doc: names of the input channels, as check names them; by default those of the Bundle, CT for one channel
    type: string[]?
    inputBinding: {prefix: --channel-names}
  crop:
    doc: field of view of the network input, the box around the lungs (lungs) or the whole volume (none)
    type: {type: enum, symbols: [lungs, none]}
    default: none
    inputBinding: {prefix: --crop}
  threshold:
    doc: probability threshold for a lesion voxel
    type: float?
    inputBinding: {prefix: --threshold}
  min_volume_mm3:
    doc: minimum lesion volume, mm³; smaller components are removed
    type: float?
    inputBinding: {prefix: --min-volume-mm3}
outputs:
  trained_model:
    doc: model folder with weights and model card
    type: Directory
    outputBinding: {glob: trained_model}
  run_report:
    doc: run report of the step
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
