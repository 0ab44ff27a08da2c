#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Train a model further by replicas that are averaged
doc: |
  Continues a trained model in rounds: replicas take steps apart from each other, then their weights are averaged, weighted by samples,
  in a fixed order. The deployment says what spreads the replicas over its nodes; the weights do not depend on it. Options that are
  left out take the defaults of the verb.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 172800}  # s
hints:
  # Read by medweave's connectors, ignored by every other runner.
  medweave:Gang: {}  # the same command may be started once per node
  medweave:GPURequest: {gpusMin: 0, gpusTotal: $(inputs.replicas)}  # each node gets its share
  medweave:Checkpoint: {folder: checkpoints}  # outlives a failed attempt; every whole round is in it
baseCommand: [medweave-step, train-distributed]
arguments:
  - {prefix: --output, valueFrom: trained_model}
  - {prefix: --training-log, valueFrom: training_log}
  - {prefix: --checkpoint-folder, valueFrom: checkpoints}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  training_set:
    doc: prepared cases of the training and validation split, with labels
    type: Directory
    inputBinding: {prefix: --training-set}
  first_model:  # input and output of one tool share their names
    doc: model folder whose weights are continued, as train and bundle write it
    type: Directory
    inputBinding: {prefix: --trained-model}
  first_training_log:
    doc: training log of that model; its curves are continued
    type: Directory?
    inputBinding: {prefix: --continues-log}
  rounds:
    doc: times that the replicas are trained apart and averaged
    type: int?
    inputBinding: {prefix: --rounds}
  steps_per_round:
    doc: optimiser steps of each replica between two averages
    type: int?
    inputBinding: {prefix: --steps-per-round}
  replicas:
    doc: copies of the network, each with its share of the patches of a step; a multiple of the nodes
    type: int?
    inputBinding: {prefix: --replicas}
  engine:
    doc: what spreads the replicas; auto is what the deployment says, else in-order
    type: {type: enum, symbols: [auto, in-order, ddp, compss]}
    default: auto
    inputBinding: {prefix: --engine}
  threads_per_replica:
    doc: compute threads of each replica; equal numbers give equal weights, wherever the replicas are trained
    type: int?
    inputBinding: {prefix: --threads-per-replica}
  batch_size:
    doc: patches per step, over all replicas together
    type: int?
    inputBinding: {prefix: --batch-size}
  patch_shape:
    doc: voxels of a training patch along I, J, K
    type: int[]?
    inputBinding: {prefix: --patch-shape}
  learning_rate:
    doc: peak of the learning rate over all rounds
    type: float?
    inputBinding: {prefix: --learning-rate}
  seed:
    doc: seed of patches and augmentation
    type: int?
    inputBinding: {prefix: --seed}
  precision:
    doc: arithmetic of the network (auto, float32, bfloat16)
    type: {type: enum, symbols: [auto, float32, bfloat16]}
    default: auto
    inputBinding: {prefix: --precision}
  resume_from:
    doc: folder with a checkpoint to continue exactly
    type: Directory?
    inputBinding: {prefix: --resume-from}
outputs:
  trained_model:
    doc: model folder, also a MONAI Bundle, with the digest of its parent
    type: Directory
    outputBinding: {glob: trained_model}
  training_log:
    doc: TensorBoard events, and the curves as JSON
    type: Directory
    outputBinding: {glob: training_log}
  checkpoints:
    doc: the last two checkpoints
    type: Directory?
    outputBinding: {glob: checkpoints}
  run_report:
    doc: what the step did, round by round and replica by replica, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
