#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Measure the loads of a network's layers and place them on devices
doc: |
  Measures the load of each part of a network, or reads loads from a file, and places the parts on devices with the genetic algorithm GABRA, for
  training in stages. `medweave advise` reads the placement. Omitted options have the defaults of the verb.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 3600}  # s
hints:
  # Read by medweave's connectors, ignored by every other runner; cwltool's own CUDARequirement would stop it where there is no GPU.
  medweave:GPURequest: {gpusMin: 0, gpusTotal: $(inputs.gpus)}
baseCommand: [medweave-step, place-layers]
arguments:
  - {prefix: --output, valueFrom: placement.json}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  devices:
    doc: number of devices; by default the number of speeds or memory_mib
    type: int?
    inputBinding: {prefix: --devices}
  speeds:
    doc: speed of each device, relative to that of a device of speed 1; by default equal devices
    type: float[]?
    inputBinding: {prefix: --speeds}
  memory_mib:
    doc: memory of each device, MiB, or one value for all; by default not limited
    type: float[]?
    inputBinding: {prefix: --memory-mib}
  loads:
    doc: loads to place, instead of measuring a network (`medweave schema partition-loads`)
    type: File?
    format: edam:format_3750  # YAML, and JSON as a part of it
    inputBinding: {prefix: --loads}
  network:
    doc: network to measure, a name that `medweave-step place-layers --help` lists
    type: string?
    inputBinding: {prefix: --network}
  network_file:
    doc: YAML file of a layer stack, in place of a network's name
    type: File?
    format: edam:format_3750  # YAML
    inputBinding: {prefix: --network-file}
  network_code:
    doc: Python file with the class of network NAME:Class; needs allow_code
    type: File?
    format: edam:format_3996  # Python script
    inputBinding: {prefix: --network-code}
  allow_code:
    doc: run the code of network module:Class, which is not part of medweave
    type: boolean?
    inputBinding: {prefix: --allow-code}
  channels:
    doc: channels per level of the U-Net, from the highest resolution down
    type: int[]?
    inputBinding: {prefix: --channels}
  width:
    doc: width multiplier of the networks for classification, the channels of every layer as a fraction of the full network's
    type: float?
    inputBinding: {prefix: --width}
  attention_stages:
    doc: stages of resattnet18 and resattnet34 (1 to 4) that end with a self-attention
    type: int[]?
    inputBinding: {prefix: --attention-stages}
  input_channels:
    doc: channels of the network's input
    type: int?
    inputBinding: {prefix: --input-channels}
  patch_shape:
    doc: size of the network's input along I, J, K, in voxels; K is 1 for images
    type: int[]?
    inputBinding: {prefix: --patch-shape}
  batch_size:
    doc: patches or images that are computed together
    type: int?
    inputBinding: {prefix: --batch-size}
  measure:
    doc: measured quantity that is the load, billions of multiply-adds (gmac) or seconds of one forward pass
    type: {type: enum, symbols: [gmac, seconds]}
    default: gmac
    inputBinding: {prefix: --measure}
  mode:
    doc: contiguous gives each device consecutive partitions, as stages need them; free any partitions
    type: {type: enum, symbols: [contiguous, free]}
    default: contiguous
    inputBinding: {prefix: --mode}
  fitness:
    doc: what the genetic algorithm maximizes; makespan, the largest load over speed of a device, gives the shortest time
    type: {type: enum, symbols: [profit, makespan, profit+makespan]}
    default: profit+makespan
    inputBinding: {prefix: --fitness}
  seed:
    doc: random seed of the genetic algorithm
    type: int?
    inputBinding: {prefix: --seed}
  device:
    doc: auto measures on a GPU where the job has one that torch can use (auto, cpu, cuda)
    type: {type: enum, symbols: [auto, cpu, cuda]}
    default: auto
    inputBinding: {prefix: --device}
  gpus:
    doc: GPUs to request for the job, 0 or 1
    type: int
    default: 0
outputs:
  placement:
    doc: loads, placement and bound (`medweave schema placement`)
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: placement.json}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
