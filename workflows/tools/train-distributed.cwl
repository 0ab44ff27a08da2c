#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Continue training a model with several replicas, whose weights are averaged in rounds
doc: |
  Continues training a model in rounds of local SGD. The replicas take optimizer steps independently; then their weights are averaged in a
  fixed order, weighted by the number of samples. The deployment determines how replicas are distributed over its nodes; this does not affect
  the weights. Omitted options have the defaults of the verb.
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
  medweave:Checkpoint: {folder: checkpoints}  # persists across attempts; written after every round
baseCommand: [medweave-step, train-distributed]
arguments:
  - {prefix: --output, valueFrom: trained_model}
  - {prefix: --training-log, valueFrom: training_log}
  - {prefix: --checkpoint-folder, valueFrom: checkpoints}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  training_set:
    doc: preprocessed cases of the training and validation split, with labels
    type: Directory
    inputBinding: {prefix: --training-set}
  first_model:  # input and output of one tool share their names
    doc: model folder of train or bundle to continue training from
    type: Directory
    inputBinding: {prefix: --trained-model}
  first_training_log:
    doc: training log of that model; its curves are extended
    type: Directory?
    inputBinding: {prefix: --continues-log}
  rounds:
    doc: number of rounds (local training, then weight averaging)
    type: int?
    inputBinding: {prefix: --rounds}
  steps_per_round:
    doc: optimizer steps of each replica per round
    type: int?
    inputBinding: {prefix: --steps-per-round}
  replicas:
    doc: number of replicas, each with its share of the patches of a step; a multiple of the number of nodes
    type: int?
    inputBinding: {prefix: --replicas}
  engine:
    doc: how replicas are distributed; auto uses the engine of the deployment, else in-order
    type: {type: enum, symbols: [auto, in-order, ddp, compss]}
    default: auto
    inputBinding: {prefix: --engine}
  threads_per_replica:
    doc: compute threads of each replica; weights are reproducible only for equal numbers
    type: int?
    inputBinding: {prefix: --threads-per-replica}
  batch_size:
    doc: patches per optimizer step, summed over all replicas
    type: int?
    inputBinding: {prefix: --batch-size}
  patch_shape:
    doc: patch size along I, J, K, in voxels
    type: int[]?
    inputBinding: {prefix: --patch-shape}
  learning_rate:
    doc: peak learning rate over all rounds
    type: float?
    inputBinding: {prefix: --learning-rate}
  seed:
    doc: random seed of patches and augmentation
    type: int?
    inputBinding: {prefix: --seed}
  precision:
    doc: precision of training (auto, float32, bfloat16)
    type: {type: enum, symbols: [auto, float32, bfloat16]}
    default: auto
    inputBinding: {prefix: --precision}
  resume_from:
    doc: folder with a checkpoint to resume from exactly
    type: Directory?
    inputBinding: {prefix: --resume-from}
  allow_code:
    doc: run the code of a network that is not part of medweave (scripts/ of the model folder)
    type: boolean?
    inputBinding: {prefix: --allow-code}
outputs:
  trained_model:
    doc: model folder, also a MONAI Bundle, with the digest of its parent model
    type: Directory
    outputBinding: {glob: trained_model}
  training_log:
    doc: TensorBoard events, and the curves as JSON
    type: Directory
    outputBinding: {glob: training_log}
  checkpoints:
    doc: last two checkpoints
    type: Directory?
    outputBinding: {glob: checkpoints}
  run_report:
    doc: run report of the step, per round and replica, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
