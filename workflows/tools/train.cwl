#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Train the segmentation network
doc: |
  Trains a 3-D U-Net on patches and keeps the weights that did best on the validation split. The same seed, options, data and
  number of threads give the same weights on a CPU. Options that are left out take the defaults of the verb.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 172800}  # s
hints:
  # Read by medweave's connectors, ignored by every other runner; cwltool's own CUDARequirement would stop it where there is no GPU.
  medweave:Gang: {}  # the same command may be started once per node
  medweave:GPURequest: {gpusMin: 0, gpusTotal: $(inputs.ranks)}  # each node gets its share
  medweave:Checkpoint: {folder: checkpoints}  # outlives a failed attempt; USR1 comes before the time limit
baseCommand: [medweave-step, train]
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
  name:
    doc: the model's name in its card
    type: string?
    inputBinding: {prefix: --name}
  epochs:
    doc: passes over the training cases, in the place of training_steps; patches are whole cases then, each exactly once a pass
    type: int?
    inputBinding: {prefix: --epochs}
  window_shape:
    doc: voxels of a sliding window along I, J, K, kept in the model card
    type: int[]?
    inputBinding: {prefix: --window-shape}
  training_steps:
    doc: optimiser steps
    type: int?
    inputBinding: {prefix: --steps}
  batch_size:
    doc: patches per step
    type: int?
    inputBinding: {prefix: --batch-size}
  patch_shape:
    doc: voxels of a training patch along I, J, K
    type: int[]?
    inputBinding: {prefix: --patch-shape}
  channels:
    doc: channels per level of the network, finest first
    type: int[]?
    inputBinding: {prefix: --channels}
  network:
    doc: >-
      unet is MONAI's, distmis-as-described and distmis-as-published are the two that DistMIS' paper can mean; `medweave-step train --help`
      lists those of other packages too; no enum, so a new one changes no workflow
    type: string
    default: unet
    inputBinding: {prefix: --network}
  norm:
    doc: normalisation of the network (batch, group, instance)
    type: {type: enum, symbols: [batch, group, instance]}
    default: batch
    inputBinding: {prefix: --norm}
  learning_rate:
    doc: peak of the learning rate
    type: float?
    inputBinding: {prefix: --learning-rate}
  beta2:
    doc: decay of Adam's mean of squared gradients
    type: float?
    inputBinding: {prefix: --beta2}
  amsgrad:
    doc: Adam that divides by the largest such mean so far
    type: boolean?
    inputBinding: {prefix: --amsgrad}
  schedule:
    doc: course of the learning rate (one-cycle, constant)
    type: {type: enum, symbols: [one-cycle, constant]}
    default: one-cycle
    inputBinding: {prefix: --schedule}
  dice:
    doc: what a Dice loss is taken over, all patches of a rank together or each (batch, sample)
    type: {type: enum, symbols: [batch, sample]}
    default: batch
    inputBinding: {prefix: --dice}
  dice_smoothing:
    doc: voxels added to both sides of the Dice's fraction
    type: float?
    inputBinding: {prefix: --dice-smoothing}
  cross_entropy_weight:
    doc: weight of the cross-entropy beside the Dice loss
    type: float?
    inputBinding: {prefix: --cross-entropy-weight}
  seed:
    doc: seed of weights, patches and augmentation
    type: int?
    inputBinding: {prefix: --seed}
  epoch_steps:
    doc: steps per epoch, the unit of progress
    type: int?
    inputBinding: {prefix: --epoch-steps}
  validation_interval:
    doc: epochs between two validations
    type: int?
    inputBinding: {prefix: --validation-interval}
  patience:
    doc: validations without a better score after which training stops; 0 never stops
    type: int?
    inputBinding: {prefix: --patience}
  precision:
    doc: arithmetic of the network (auto, float32, bfloat16)
    type: {type: enum, symbols: [auto, float32, bfloat16]}
    default: auto
    inputBinding: {prefix: --precision}
  strategy:
    doc: how training is spread over processes, by a name that `medweave-step train --help` lists; no enum, so a new one changes no workflow
    type: string
    default: single
    inputBinding: {prefix: --strategy}
  scale_by_ranks:
    doc: whether the batch size and the learning rate are those of one rank, and multiplied by the ranks
    type: boolean?
    inputBinding: {prefix: --scale-by-ranks}
  ranks:
    doc: processes of a strategy that has several, over all nodes together; a multiple of the nodes
    type: int
    default: 1
    inputBinding: {prefix: --ranks}
  sync_interval:
    doc: steps of local-sgd between two averages of the weights; else an epoch
    type: int?
    inputBinding: {prefix: --sync-interval}
  chunk_mib:
    doc: MiB of cases that a rank of local-sgd keeps in memory; its epoch is cut into chunks that fit, which are trained apart and averaged
    type: int?
    inputBinding: {prefix: --chunk-mib}
  cache_mib:
    doc: MiB of cases that a rank keeps in memory ready to use, with epochs; else it cuts them from their files in each epoch
    type: int?
    inputBinding: {prefix: --cache-mib}
  accumulate:
    doc: parts that a rank cuts its patches of a step into, to need less memory
    type: int?
    inputBinding: {prefix: --accumulate}
  threads_per_rank:
    doc: compute threads of each rank; equal numbers give equal weights, wherever the ranks are
    type: int?
    inputBinding: {prefix: --threads-per-rank}
  resume_from:
    doc: folder with a checkpoint to continue exactly
    type: Directory?
    inputBinding: {prefix: --resume-from}
outputs:
  trained_model:
    doc: model folder, also a MONAI Bundle
    type: Directory
    outputBinding: {glob: trained_model}
  training_log:
    doc: TensorBoard events, and the curves as JSON
    type: Directory
    outputBinding: {glob: training_log}
  checkpoints:
    doc: the last checkpoint, where one was due
    type: Directory?
    outputBinding: {glob: checkpoints}
  run_report:
    doc: what the step did, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
