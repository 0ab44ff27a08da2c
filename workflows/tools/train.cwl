#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Train a network for segmentation or classification
doc: |
  Trains a network and keeps the weights with the best validation score. On a CPU, the same seed, options, data and
  number of threads give the same weights. Omitted options have the defaults of the verb.
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
  medweave:Checkpoint: {folder: checkpoints}  # persists across attempts; SIGUSR1 arrives before the time limit
baseCommand: [medweave-step, train]
arguments:
  - {prefix: --output, valueFrom: trained_model}
  - {prefix: --training-log, valueFrom: training_log}
  - {prefix: --checkpoint-folder, valueFrom: checkpoints}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  training_set:
    doc: preprocessed cases of the training and validation split, with labels or classes
    type: Directory
    inputBinding: {prefix: --training-set}
  name:
    doc: model name in the model card
    type: string?
    inputBinding: {prefix: --name}
  task:
    doc: what the model learns, a name that `medweave-step train --help` lists; by default segmentation
    type: string?
    inputBinding: {prefix: --task}
  regions:
    doc: unions of labels to predict instead of the labels, which may overlap, such as "whole tumor:1,2,3" "tumor core:2,3"
    type: string[]?
    inputBinding: {prefix: --regions}
  class_weights:
    doc: of a classification, weights of the classes in the loss (none, balanced)
    type: string?  # as `schedule`
    inputBinding: {prefix: --class-weights}
  label_smoothing:
    doc: of a classification, how far the truth of the loss is moved towards equal probabilities, 0 to less than 1
    type: float?
    inputBinding: {prefix: --label-smoothing}
  sampling:
    doc: of a classification, whether each class (balanced) or each case (natural) is drawn with equal probability
    type: string?  # as `schedule`
    inputBinding: {prefix: --sampling}
  flip_axes:
    doc: of a classification, axes (I, J, K) along which augmentation mirrors images; by default none
    type: string[]?
    inputBinding: {prefix: --flip-axes}
  best_by:
    doc: of a classification, how the best weights and early stopping compare validations (score, the macro-F1, the default; or loss)
    type: string?  # as `schedule`
    inputBinding: {prefix: --best-by}
  preset:
    doc: defaults of the other options, the recipe of the demo (demo), those of the papers of DistMIS (distmis) and of 3D-ResAttNet (resattnet), or options chosen for the training set and the memory by nnU-Net's rules (auto)
    type: {type: enum, symbols: [demo, distmis, resattnet, auto]}
    default: demo
    inputBinding: {prefix: --preset}
  memory_gib:
    doc: memory of a training step with preset auto, GiB; by default the free memory of the device up to nnU-Net's target
    type: float?
    inputBinding: {prefix: --memory-gib}
  epochs:
    doc: number of passes over the training cases, instead of training_steps; patches are then whole cases, each used once per epoch
    type: int?
    inputBinding: {prefix: --epochs}
  window_shape:
    doc: sliding-window size along I, J, K, in voxels; stored in the model card
    type: int[]?
    inputBinding: {prefix: --window-shape}
  training_steps:
    doc: number of optimizer steps
    type: int?
    inputBinding: {prefix: --steps}
  batch_size:
    doc: patches, or images of a classification, per optimizer step
    type: int?
    inputBinding: {prefix: --batch-size}
  patch_shape:
    doc: patch size along I, J, K, in voxels
    type: int[]?
    inputBinding: {prefix: --patch-shape}
  channels:
    doc: channels per level of the U-Net, from the highest resolution down
    type: int[]?
    inputBinding: {prefix: --channels}
  network:
    doc: MONAI U-Net (unet); 3-D U-Net of DistMIS, as described in the paper (distmis-as-described) or as implied by its number of parameters (distmis-as-published); or another that `medweave-step train --help` lists; by default that of the preset or the task
    type: string?
    inputBinding: {prefix: --network}
  width:
    doc: width multiplier of the networks for classification, the channels of every layer as a fraction of the full network's
    type: float?
    inputBinding: {prefix: --width}
  dropout:
    doc: dropout rate of vgg16
    type: float?
    inputBinding: {prefix: --dropout}
  units:
    doc: units of each hidden layer of mlp
    type: int?
    inputBinding: {prefix: --units}
  hidden_layers:
    doc: hidden layers of mlp
    type: int?
    inputBinding: {prefix: --hidden-layers}
  hidden_dropout:
    doc: dropout rate after each hidden layer of mlp
    type: float?
    inputBinding: {prefix: --hidden-dropout}
  attention_stages:
    doc: stages of resattnet18 and resattnet34 (1 to 4) that end with a self-attention; by default the last one
    type: int[]?
    inputBinding: {prefix: --attention-stages}
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
  initial_model:
    doc: model folder or MONAI Bundle whose weights the training begins with, where name and shape match
    type: Directory?
    inputBinding: {prefix: --initial-weights}
  initial_state_dict:
    doc: file of weights (.safetensors, .pt) that the training begins with, in place of initial_model
    type: File?
    format: edam:format_2333  # binary
    inputBinding: {prefix: --initial-weights}
  freeze:
    doc: with initial weights, parameters that are not trained, as patterns of their names such as "features.*"
    type: string[]?
    inputBinding: {prefix: --freeze}
  norm:
    doc: normalization layers (batch, group, instance), by default those of the preset
    type: string?  # as `schedule`
    inputBinding: {prefix: --norm}
  learning_rate:
    doc: peak learning rate
    type: float?
    inputBinding: {prefix: --learning-rate}
  optimizer:
    doc: optimizer (adam, adamw, sgd), by default that of the preset
    type: string?  # as `schedule`
    inputBinding: {prefix: --optimizer}
  momentum:
    doc: Nesterov momentum of sgd; 0 is plain gradient descent
    type: float?
    inputBinding: {prefix: --momentum}
  weight_decay:
    doc: decoupled weight decay of adam and adamw, or the L2 penalty of sgd
    type: float?
    inputBinding: {prefix: --weight-decay}
  beta2:
    doc: beta2 of Adam, decay rate of the second moment
    type: float?
    inputBinding: {prefix: --beta2}
  amsgrad:
    doc: use the AMSGrad variant of Adam
    type: boolean?
    inputBinding: {prefix: --amsgrad}
  schedule:
    doc: learning-rate schedule, by default that of the preset
    type: string?  # a name that `medweave-step train --help` lists; StreamFlow 0.2.0rc3 refuses an enum without a value
    inputBinding: {prefix: --schedule}
  dice:
    doc: Dice reduction, over all patches of a rank (batch) or per patch (sample), by default that of the preset
    type: string?  # as `schedule`
    inputBinding: {prefix: --dice}
  dice_smoothing:
    doc: smoothing term of the Dice loss, in voxels
    type: float?
    inputBinding: {prefix: --dice-smoothing}
  cross_entropy_weight:
    doc: weight of the cross-entropy loss
    type: float?
    inputBinding: {prefix: --cross-entropy-weight}
  seed:
    doc: random seed of weight initialization, patches and augmentation
    type: int?
    inputBinding: {prefix: --seed}
  epoch_steps:
    doc: optimizer steps per epoch
    type: int?
    inputBinding: {prefix: --epoch-steps}
  validation_interval:
    doc: validation interval, in epochs
    type: int?
    inputBinding: {prefix: --validation-interval}
  patience:
    doc: early stopping, number of validations without a better validation score; with parameter-server, a validation counts only if the training loss is the lowest so far; 0 disables it
    type: int?
    inputBinding: {prefix: --patience}
  precision:
    doc: precision of training (auto, float32, bfloat16)
    type: {type: enum, symbols: [auto, float32, bfloat16]}
    default: auto
    inputBinding: {prefix: --precision}
  strategy:
    doc: distribution strategy, a name listed by `medweave-step train --help` (a string, so that packages can add strategies)
    type: string
    default: single
    inputBinding: {prefix: --strategy}
  scale_by_ranks:
    doc: batch size and learning rate apply to one rank and are multiplied by the number of ranks, replicas (hybrid) or workers (parameter-server)
    type: boolean?
    inputBinding: {prefix: --scale-by-ranks}
  ranks:
    doc: number of ranks of a multi-process strategy, over all nodes; a multiple of the number of nodes
    type: int
    default: 1
    inputBinding: {prefix: --ranks}
  sync_interval:
    doc: optimizer steps of local-sgd between two synchronization points; by default one epoch
    type: int?
    inputBinding: {prefix: --sync-interval}
  chunk_mib:
    doc: MiB of cases that a rank of local-sgd keeps in memory; an epoch is divided into chunks that fit, which are averaged
    type: int?
    inputBinding: {prefix: --chunk-mib}
  stages:
    doc: pipeline stages of hybrid, a divisor of the number of ranks; by default the fewest that fit into the memory of the devices
    type: int?
    inputBinding: {prefix: --stages}
  micro_batches:
    doc: largest number of micro-batches of hybrid, into which the patches of a replica are cut; by default twice the stages
    type: int?
    inputBinding: {prefix: --micro-batches}
  pipelined:
    doc: delayed training with hybrid, where a stage updates its weights after each micro-batch
    type: boolean?
    inputBinding: {prefix: --pipelined}
  stage_memory_mib:
    doc: memory of the device of each stage of hybrid, MiB; by default that of the smallest GPU, and no limit on CPUs
    type: float?
    inputBinding: {prefix: --stage-memory-mib}
  coordination:
    doc: of parameter-server, whether every worker waits for the slowest one (sync, the default) or no worker waits for another (async)
    type: string?  # as `schedule`
    inputBinding: {prefix: --coordination}
  rule:
    doc: what a worker of parameter-server sends, by default sync-gradient, or async-weights with coordination async
    type: string?  # as `schedule`
    inputBinding: {prefix: --rule}
  quorum:
    doc: number of updates that an asynchronous parameter server averages before it changes its weights, by default 1
    type: int?
    inputBinding: {prefix: --quorum}
  weighting:
    doc: weight of the server's own weights when updates arrive, with rule async-weights; by default 1
    type: float?
    inputBinding: {prefix: --weighting}
  worker_timeout:
    doc: seconds without a heartbeat after which a worker counts as lost, with coordination async; by default 40
    type: float?
    inputBinding: {prefix: --worker-timeout}
  batch_norm_statistics:
    doc: of parameter-server, whether running statistics of batch norm are averaged (averaged, the default) or kept by each worker (local)
    type: string?  # as `schedule`
    inputBinding: {prefix: --batch-norm-statistics}
  transport:
    doc: how server and workers of parameter-server exchange messages (gloo, the default, grpc or mpi)
    type: string?  # as `schedule`
    inputBinding: {prefix: --transport}
  replay_arrivals:
    doc: arrivals.json of the log of an earlier training with coordination async, whose order of arrivals is repeated
    type: File?
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --replay-arrivals}
  cache_mib:
    doc: case cache of each rank, MiB, with epochs; by default cases are read from their files in each epoch
    type: int?
    inputBinding: {prefix: --cache-mib}
  accumulate:
    doc: gradient accumulation, number of parts of a rank's patches per step; saves memory
    type: int?
    inputBinding: {prefix: --accumulate}
  threads_per_rank:
    doc: compute threads of each rank; weights are reproducible only for equal numbers
    type: int?
    inputBinding: {prefix: --threads-per-rank}
  monitor_interval:
    doc: seconds between two hardware samples of a rank, in the training log; 0 turns the monitor off; by default 1
    type: float?
    inputBinding: {prefix: --monitor-interval}
  resume_from:
    doc: folder with a checkpoint to resume from exactly
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
    doc: last checkpoint, if one was written
    type: Directory?
    outputBinding: {glob: checkpoints}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
