#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Train a brain tumor segmentation model, and evaluate it on the test split
doc: |
  Trains a model on brain MR with masks: the whole tumor by default, or several labels, or regions that overlap. Writes the masks of the
  test split, their evaluation against the ground truth, and a report with the time for each number of ranks. The defaults are those of
  DistMIS: MSD Task01, whole volumes of 240 x 240 x 152 voxels, Dice loss, Adam with 1e-4 and a batch of 2 for each rank, 250 epochs.
  With `distributed`, the first model is trained further by several replicas; with `quantized`, gate may accept an int8 model.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with brain MR and masks (MSD or nnU-Net data set, BIDS or BraTS folder, DICOM series with DICOM SEG or RTSTRUCT, or NIfTI)
    type: Directory
  identified:
    doc: the cohort contains patient identities; it is then de-identified first, and the later steps use the result
    type: boolean
    default: false
  pseudonym_key:
    doc: pseudonym key of an earlier run, for the same pseudonyms, dates and splits; by default each run creates a new key
    type: File?
    format: edam:format_2333  # binary
  brain_masks:
    doc: brain masks (NIfTI), with identified; all voxels outside are removed, so that no face is left
    type: Directory?
  faces:
    doc: whether scans show faces, with identified; auto uses the cohort card, else the headers; absent for skull-stripped or defaced scans
    type: {type: enum, symbols: [auto, present, absent]}
    default: auto
  label_file:
    doc: labels of the masks with their DICOM codes, as a JSON list of value, name, category, type, anatomy and laterality
    type: File?
    format: edam:format_3464  # JSON
  channels:
    doc: rules that group the DICOM series of a study into named channels, or the names of the NIfTI channels to read, as a JSON list; not needed for an MSD data set
    type: File?
    format: edam:format_3464  # JSON
  ignore_label:
    doc: mask value of voxels without annotation, which count in no loss and no metric
    type: int?
  on_error:
    doc: invalid cases, stop after all errors are reported (stop) or skip these cases (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  spacing_mm:
    doc: voxel size of the network input along Right, Anterior, Superior, mm
    type: float[]?
  merge_labels:
    doc: mask values to merge into one label; the default merges the three labels of MSD Task01 into the whole tumor, and [] keeps the labels
    type: string[]
    default: ["1,2,3:whole tumour"]
  regions:
    doc: unions of labels to predict instead of the labels, which may overlap, such as "whole tumor:1,2,3" "tumor core:2,3"
    type: string[]?
  fractions:
    doc: fractions of patients for training, validation and test, with sum 1
    type: float[]
    default: [0.7, 0.15, 0.15]
  split_seed:
    doc: random seed of the assignment of patients to splits
    type: int
    default: 0
  cases_per_batch:
    doc: maximum number of cases that one job segments
    type: int
    default: 8
  training_preset:
    doc: defaults of the training, the recipe of the paper (distmis), or options chosen for the scans and the memory (auto)
    type: {type: enum, symbols: [distmis, auto, demo]}
    default: distmis
  training_memory_gib:
    doc: memory of a training step with training_preset auto, GiB
    type: float?
  training_steps:
    doc: number of optimizer steps, for training_preset auto or demo
    type: int?
  network:
    doc: 3-D U-Net of DistMIS, as described in the paper (distmis-as-described) or as implied by its number of parameters (distmis-as-published), the MONAI U-Net (unet), or another that `medweave-step train --help` lists; by default that of the preset
    type: string?
  norm:
    doc: normalization layers (batch, group, instance); by default those of the preset
    type: string?
  volume_shape:
    doc: size of a whole preprocessed volume along I, J, K, in voxels, multiples of 8; of a patch with another preset than distmis. By default that of the preset, 240 240 152 with distmis
    type: int[]?
  epochs:
    doc: number of epochs; by default 250 with distmis
    type: int?
  batch_size:
    doc: volumes per optimizer step and rank; by default 2 with distmis
    type: int?
  learning_rate:
    doc: learning rate of one rank, which is multiplied by the number of ranks with distmis; by default 0.0001 with distmis
    type: float?
  beta2:
    doc: beta2 of Adam, decay rate of the second moment
    type: float?
  amsgrad:
    doc: use the AMSGrad variant of Adam
    type: boolean?
  dice_smoothing:
    doc: smoothing term of the Dice loss, in voxels (epsilon in the paper); by default 0.1 with distmis
    type: float?
  dice:
    doc: Dice reduction, over all volumes of a rank (batch) or per volume (sample); by default sample with distmis
    type: string?
  cross_entropy_weight:
    doc: weight of the cross-entropy loss; by default 0 with distmis
    type: float?
  training_seed:
    doc: random seed of weight initialization and case order
    type: int
    default: 0
  training_strategy:
    doc: distribution strategy, a name listed by `medweave-step train --help`
    type: string
    default: ddp
  training_ranks:
    doc: number of ranks of the training, over all nodes
    type: int
    default: 1
  training_chunk_mib:
    doc: MiB of cases that a rank of local-sgd keeps in memory; an epoch is divided into chunks that fit, which are averaged
    type: int?
  training_cache_mib:
    doc: case cache of each rank, MiB; by default cases are read from their files in each epoch
    type: int?
  timed_ranks:
    doc: other numbers of ranks to time; the same training runs once for each, for the table of the report
    type: int[]
    default: []
  training_stages:
    doc: pipeline stages of training_strategy hybrid, a divisor of training_ranks; by default the fewest that fit into the memory of the devices
    type: int?
  training_micro_batches:
    doc: largest number of micro-batches of training_strategy hybrid; by default twice the stages
    type: int?
  training_pipelined:
    doc: delayed training with training_strategy hybrid, where a stage updates its weights after each micro-batch
    type: boolean?
  training_stage_memory_mib:
    doc: memory of the device of each stage of training_strategy hybrid, MiB; by default that of the smallest GPU, and no limit on CPUs
    type: float?
  training_threads:
    doc: compute threads of each rank and replica; weights are reproducible only for equal numbers
    type: int?
  distributed:
    doc: continue training the first model with several replicas, whose weights are averaged; training_preset does not apply to it. It uses batch_size (summed over all replicas) and volume_shape if they are set, else 10 patches of 32 x 32 x 32 voxels
    type: boolean
    default: false
  distributed_rounds:
    doc: number of rounds (local training, then weight averaging)
    type: int?
  distributed_steps_per_round:
    doc: optimizer steps of each replica per round
    type: int?
  distributed_replicas:
    doc: number of replicas
    type: int?
  distributed_engine:
    doc: how replicas are distributed; auto uses the engine of the deployment, else in-order
    type: {type: enum, symbols: [auto, in-order, ddp, compss]}
    default: auto
  quantized:
    doc: quantize the model to int8, and let gate accept or refuse it on the machine type of segment
    type: boolean
    default: false
  pruned:
    doc: with `quantized`, prune the trained model too, so that gate can accept a smaller and faster network
    type: boolean
    default: false
  pruning_tolerance:
    doc: largest rise of the validation loss by pruning, as a fraction of the loss of the trained model
    type: float?
  pruning_budget_epochs:
    doc: number of epochs of pruning, of 50 steps each
    type: int
    default: 60
  gate_max_slowdown:
    doc: maximum time relative to float32 for an int8 model that is smaller but not faster
    type: float?
  gate_candidates:
    doc: |
      candidate and runtime to accept if its metrics stay within the tolerances, whatever its speed, such as int8:openvino or
      float32:openvino; by default gate decides by the speed that it measures, which differs between machines
    type: string?
  inference_gpus:
    doc: GPUs to request for each job of gate and segment, 0 or 1
    type: int
    default: 0
outputs:
  exported_model:
    doc: model folder, also a MONAI Bundle
    type: Directory
    outputSource: export/exported_model
  accepted_model:
    doc: model folder whose card fixes the precision and the runtime that gate accepted, with quantized
    type: Directory?
    outputSource: gate/accepted_model
  gate_decision:
    doc: measurements and decision for each candidate, with quantized
    type: File?
    format: edam:format_3464  # JSON
    outputSource: gate/gate_decision
  training_log:
    doc: TensorBoard events, and the curves as JSON
    type: Directory
    outputSource: [train_distributed/training_log, train/training_log]
    pickValue: first_non_null
  segmentations:
    doc: masks (NIfTI, for DICOM sources DICOM SEG) and lesion tables (CSV, DICOM SR) of the test cases, one folder per batch
    type: Directory[]
    outputSource: segment/segmentations
  evaluation:
    doc: metrics per case and pooled, with 95 % intervals
    type: Directory
    outputSource: evaluate/evaluation
  evaluation_report:  # the step has the name `report`, and one document has one namespace
    doc: reproducible part of the report
    type: Directory
    outputSource: report/report
  home:
    doc: re-identification map and a new key; identified data, keep it inside your institution
    type: Directory?
    outputSource: deidentify/home
steps:
  deidentify:
    run: ../tools/deidentify.cwl
    when: $(inputs.identified)
    in:
      identified: identified
      cohort: cohort
      pseudonym_key: pseudonym_key
      brain_masks: brain_masks
      faces: faces
      on_error: on_error
    out: [deidentified_cohort, home, run_report]
  check:
    run: ../tools/check.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
      label_file: label_file
      merge_labels: merge_labels
      ignore_label: ignore_label
      channels: channels
      on_error: on_error
    out: [cohort_index, run_report]
  preprocess:
    run: ../tools/preprocess.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
      cohort_index: check/cohort_index
      purpose: {default: training}
      spacing_mm: spacing_mm
      fractions: fractions
      split_seed: split_seed
      cases_per_batch: cases_per_batch
    out: [training_set, inference_batches, run_report]
  train:
    run: ../tools/train.cwl
    in:
      training_set: preprocess/training_set
      name: {default: brain-tumour}
      regions: regions
      preset: training_preset
      memory_gib: training_memory_gib
      training_steps: training_steps
      network: network
      norm: norm
      epochs: epochs
      batch_size: batch_size
      patch_shape: volume_shape
      window_shape: volume_shape
      learning_rate: learning_rate
      beta2: beta2
      amsgrad: amsgrad
      dice: dice
      dice_smoothing: dice_smoothing
      cross_entropy_weight: cross_entropy_weight
      seed: training_seed
      strategy: training_strategy
      ranks: training_ranks
      chunk_mib: training_chunk_mib
      cache_mib: training_cache_mib
      stages: training_stages
      micro_batches: training_micro_batches
      pipelined: training_pipelined
      stage_memory_mib: training_stage_memory_mib
      threads_per_rank: training_threads
    out: [trained_model, training_log, run_report]
  train_timed:  # the time of other numbers of ranks; their models are not used
    run: ../tools/train.cwl
    scatter: ranks
    in:
      training_set: preprocess/training_set
      name: {default: brain-tumour}
      regions: regions
      preset: training_preset
      memory_gib: training_memory_gib
      training_steps: training_steps
      network: network
      norm: norm
      epochs: epochs
      batch_size: batch_size
      patch_shape: volume_shape
      window_shape: volume_shape
      learning_rate: learning_rate
      beta2: beta2
      amsgrad: amsgrad
      dice: dice
      dice_smoothing: dice_smoothing
      cross_entropy_weight: cross_entropy_weight
      seed: training_seed
      strategy: training_strategy
      ranks: timed_ranks
      chunk_mib: training_chunk_mib
      cache_mib: training_cache_mib
      threads_per_rank: training_threads
    out: [run_report]
  train_distributed:
    run: ../tools/train-distributed.cwl
    when: $(inputs.distributed)
    in:
      distributed: distributed
      training_set: preprocess/training_set
      first_model: train/trained_model
      first_training_log: train/training_log
      rounds: distributed_rounds
      steps_per_round: distributed_steps_per_round
      replicas: distributed_replicas
      batch_size: batch_size
      patch_shape: volume_shape
      engine: distributed_engine
      threads_per_replica: training_threads
      seed: training_seed
    out: [trained_model, training_log, run_report]
  export:
    run: ../tools/export.cwl
    in:
      trained_model:
        source: [train_distributed/trained_model, train/trained_model]
        pickValue: first_non_null
    out: [exported_model, run_report]
  quantize:
    run: ../tools/quantize.cwl
    when: $(inputs.quantized)
    in:
      quantized: quantized
      exported_model: export/exported_model
      training_set: preprocess/training_set
    out: [int8_candidate, run_report]
  prune:
    run: ../tools/prune.cwl
    when: $(inputs.pruned)
    in:
      pruned: pruned
      training_set: preprocess/training_set
      trained_model:
        source: [train_distributed/trained_model, train/trained_model]
        pickValue: first_non_null
      tolerance: pruning_tolerance
      budget_epochs: pruning_budget_epochs
      removal_tolerance: {default: 0.6}
      epoch_steps: {default: 50}
      plateau_epochs: {default: 4}
      optimizer: {default: adam}
      learning_rate: {default: 0.003}
    out: [pruned_model, run_report]
  export_pruned:
    run: ../tools/export.cwl
    when: $(inputs.pruned)
    in:
      pruned: pruned
      trained_model:
        source: [prune/pruned_model, train/trained_model]
        pickValue: first_non_null  # without `pruned`, neither step runs
    out: [exported_model, run_report]
  quantize_pruned:
    run: ../tools/quantize.cwl
    when: $(inputs.pruned)
    in:
      pruned: pruned
      exported_model:
        source: [export_pruned/exported_model, export/exported_model]
        pickValue: first_non_null  # as in export_pruned
      training_set: preprocess/training_set
    out: [int8_candidate, run_report]
  gate:
    run: ../tools/gate.cwl
    when: $(inputs.quantized)
    in:
      quantized: quantized
      exported_model: export/exported_model
      candidates:
        source: [quantize/int8_candidate, export_pruned/exported_model, quantize_pruned/int8_candidate]
        linkMerge: merge_flattened
        pickValue: all_non_null  # without `quantized` or `pruned`, their steps do not run
      training_set: preprocess/training_set
      test_batches: preprocess/inference_batches
      max_slowdown: gate_max_slowdown
      fixed_choice: gate_candidates
      gpus: inference_gpus
    out: [accepted_model, gate_decision, run_report]
  segment:
    run: ../tools/segment.cwl
    scatter: case_batch
    in:
      segmentation_model:
        source: [gate/accepted_model, export/exported_model]
        pickValue: first_non_null
      case_batch: preprocess/inference_batches
      gpus: inference_gpus
    out: [segmentations, run_report]
  evaluate:
    run: ../tools/evaluate.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
      cohort_index: check/cohort_index
      segmentations: segment/segmentations
      case_batches: preprocess/inference_batches
    out: [evaluation, run_report]
  report:
    run: ../tools/report.cwl
    in:
      title: {default: Brain tumour segmentation in MR}
      evaluation: evaluate/evaluation
      segmentations: segment/segmentations
      case_batches: preprocess/inference_batches
      training_log:
        source: [train_distributed/training_log, train/training_log]
        pickValue: first_non_null
      run_reports:
        source:
          - deidentify/run_report
          - check/run_report
          - preprocess/run_report
          - train/run_report
          - train_timed/run_report
          - train_distributed/run_report
          - export/run_report
          - quantize/run_report
          - prune/run_report
          - export_pruned/run_report
          - quantize_pruned/run_report
          - gate/run_report
          - segment/run_report
          - evaluate/run_report
        linkMerge: merge_flattened
        pickValue: all_non_null  # optional steps may not have run
    out: [report, run_report]
