#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Prune a trained model within a tolerance of the validation loss
doc: |
  Trains a model further, shrinks what its network hardly depends on, and removes it. The method serene removes whole channels, guided by the
  time measured on the machine of this step; lobster and generic set single weights to zero, which makes no dense runtime faster. A tolerance
  that nothing meets leaves the model unchanged. Omitted options have the defaults of the verb.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 172800}  # s
hints:
  # Read by medweave's connectors, ignored by every other runner; cwltool's own CUDARequirement would stop it where there is no GPU.
  medweave:GPURequest: {gpusMin: 0, gpusMax: 1}
  medweave:Checkpoint: {folder: checkpoints}  # persists across attempts; written after every epoch
baseCommand: [medweave-step, prune]
arguments:
  - {prefix: --output, valueFrom: pruned_model}
  - {prefix: --training-log, valueFrom: pruning_log}
  - {prefix: --checkpoint-folder, valueFrom: checkpoints}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  training_set:
    doc: preprocessed cases of the training and validation split, with labels or classes
    type: Directory
    inputBinding: {prefix: --training-set}
  trained_model:
    doc: model folder of train or bundle
    type: Directory
    inputBinding: {prefix: --trained-model}
  method:
    doc: sensitivity that decides what is removed (serene, lobster, generic); by default serene, which removes channels
    type: string?  # StreamFlow 0.2.0rc3 refuses an enum without a value
    inputBinding: {prefix: --method}
  tolerance:
    doc: largest rise of the validation loss, as a fraction of the loss of the trained model
    type: float?
    inputBinding: {prefix: --tolerance}
  removal_tolerance:
    doc: largest rise of the validation loss directly after a removal, as a fraction of the loss before it; by default tolerance
    type: float?
    inputBinding: {prefix: --removal-tolerance}
  budget_epochs:
    doc: number of epochs; at least a quarter of them train the network after the last removal
    type: int?
    inputBinding: {prefix: --budget-epochs}
  epoch_steps:
    doc: optimizer steps per epoch
    type: int?
    inputBinding: {prefix: --epoch-steps}
  plateau_epochs:
    doc: number of epochs without a lower validation loss, after which weights or channels are removed
    type: int?
    inputBinding: {prefix: --plateau-epochs}
  learning_rate:
    doc: learning rate
    type: float?
    inputBinding: {prefix: --learning-rate}
  shrink:
    doc: shrink rate of insensitive weights per step
    type: float?
    inputBinding: {prefix: --shrink}
  optimizer:
    doc: optimizer (sgd, adam, adamw), by default sgd
    type: string?  # as `method`
    inputBinding: {prefix: --optimizer}
  batch_size:
    doc: patches, or images of a classification, per optimizer step
    type: int?
    inputBinding: {prefix: --batch-size}
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
    doc: folder with a checkpoint to resume from
    type: Directory?
    inputBinding: {prefix: --resume-from}
  allow_code:
    doc: run the code of a network that is not part of medweave (scripts/ of the model folder)
    type: boolean?
    inputBinding: {prefix: --allow-code}
outputs:
  pruned_model:
    doc: model folder, also a MONAI Bundle; its card has the channels of each layer, and all figures before and after
    type: Directory
    outputBinding: {glob: pruned_model}
  pruning_log:
    doc: TensorBoard events, and the curves as JSON
    type: Directory
    outputBinding: {glob: pruning_log}
  checkpoints:
    doc: last two checkpoints
    type: Directory?
    outputBinding: {glob: checkpoints}
  run_report:
    doc: run report of the step, with all figures before and after, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
