#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Train a lung nodule segmentation model, and evaluate it on the test split
doc: |
  De-identifies a folder of chest CT with masks and trains a model. Writes the model that gate accepts for the machine type of segment, the
  nodules of the test split as DICOM SEG, their evaluation against the ground truth, and a report. With `distributed`, the first model is
  trained further by several replicas at the target of that step. Omitted inputs have the defaults of the verbs.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with chest CT and masks (DICOM series with DICOM SEG, an MSD data set, or NIfTI)
    type: Directory
  identified:
    doc: the cohort contains patient identities; it is then de-identified first, and the later steps use the result
    type: boolean
    default: true
  pseudonym_key:
    doc: pseudonym key of an earlier run, for the same pseudonyms, dates and splits; by default each run creates a new key
    type: File?
    format: edam:format_2333  # binary
  faces:
    doc: whether scans show faces, with identified; auto uses the cohort card, else the headers; absent for scans of the chest alone
    type: {type: enum, symbols: [auto, present, absent]}
    default: auto
  labels:
    doc: preset for the labels of the masks with their DICOM codes
    type: string
    default: lung-nodule
  label_file:
    doc: labels of the masks as a JSON list of value, name, category, type, anatomy and laterality; replaces the preset
    type: File?
    format: edam:format_3464  # JSON
  merge_labels:
    doc: mask values to merge into one label, such as "1,2:nodule"; labels are never merged silently
    type: string[]?
  on_error:
    doc: invalid cases, stop after all errors are reported (stop) or skip these cases (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  spacing_mm:
    doc: voxel size of the network input along Right, Anterior, Superior, mm
    type: float[]?
  spacing_rule:
    doc: spacing_mm or its default (fixed), or the voxel size of nnU-Net's rule for the scans of the cohort (nnunet)
    type: {type: enum, symbols: [fixed, nnunet]}
    default: fixed
  window_hu:
    doc: intensity window (low, high) of the network input, HU
    type: float[]?
  fractions:
    doc: fractions of patients for training, validation and test, with sum 1; splits fixed by the cohort do not change
    type: float[]?
  split_seed:
    doc: random seed of the assignment of patients to splits
    type: int
    default: 0
  cases_per_batch:
    doc: maximum number of cases that one job segments
    type: int
    default: 8
  training_preset:
    doc: defaults of the training, the recipe of the demo (demo) or options chosen for the scans and the memory (auto)
    type: {type: enum, symbols: [demo, auto]}
    default: demo
  training_memory_gib:
    doc: memory of a training step with training_preset auto, GiB
    type: float?
  training_network:
    doc: network, a name listed by `medweave-step train --help`; by default that of the preset
    type: string?
  training_steps:
    doc: number of optimizer steps
    type: int?
  training_batch_size:
    doc: patches per step
    type: int?
  training_patch_shape:
    doc: voxels of a training patch along I, J, K; multiples of 8
    type: int[]?
  training_learning_rate:
    doc: peak of the learning rate of the first training
    type: float?
  training_channels:
    doc: channels per level of the network, finest first, five numbers
    type: int[]?
  training_seed:
    doc: random seed of weight initialization, patches and augmentation
    type: int
    default: 0
  training_strategy:
    doc: distribution strategy of the first training, a name listed by `medweave-step train --help`
    type: string
    default: single
  training_ranks:
    doc: number of ranks of a multi-process strategy, over all nodes
    type: int
    default: 1
  training_sync_interval:
    doc: optimizer steps of local-sgd between two synchronization points; by default one epoch
    type: int?
  training_threads:
    doc: compute threads of each rank and replica; weights are reproducible only for equal numbers
    type: int?
  distributed:
    doc: continue training the first model with several replicas, whose weights are averaged
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
  pruned:
    doc: prune the trained model too, so that gate can accept a smaller and faster network
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
    doc: |
      maximum time relative to float32 for an int8 model that is smaller but not faster. With the default of 1.1, timing noise can
      change the decision between two runs; with a large number, only the tolerances of the metrics decide.
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
  threshold:
    doc: probability threshold for a lesion voxel, between 0 and 1; by default the threshold in the model card
    type: float?
outputs:
  accepted_model:
    doc: model folder, also a MONAI Bundle; its card fixes the precision and the runtime that gate accepted
    type: Directory
    outputSource: gate/accepted_model
  gate_decision:
    doc: measurements and decision for each candidate
    type: File
    format: edam:format_3464  # JSON
    outputSource: gate/gate_decision
  training_log:
    doc: TensorBoard events, and the curves as JSON
    type: Directory
    outputSource: [train_distributed/training_log, train/training_log]
    pickValue: first_non_null
  segmentations:
    doc: masks (NIfTI, DICOM SEG) and lesion tables (CSV, DICOM SR) of the test cases, one folder per batch
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
      faces: faces
      on_error: on_error
    out: [deidentified_cohort, home, run_report]
  check:
    run: ../tools/check.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
      labels: labels
      label_file: label_file
      merge_labels: merge_labels
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
      spacing_rule: spacing_rule
      window_hu: window_hu
      fractions: fractions
      split_seed: split_seed
      cases_per_batch: cases_per_batch
    out: [training_set, inference_batches, run_report]
  train:
    run: ../tools/train.cwl
    in:
      training_set: preprocess/training_set
      preset: training_preset
      memory_gib: training_memory_gib
      network: training_network
      training_steps: training_steps
      batch_size: training_batch_size
      patch_shape: training_patch_shape
      learning_rate: training_learning_rate
      channels: training_channels
      seed: training_seed
      strategy: training_strategy
      ranks: training_ranks
      sync_interval: training_sync_interval
      threads_per_rank: training_threads
    out: [trained_model, training_log, run_report]
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
      batch_size: training_batch_size
      patch_shape: training_patch_shape
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
    in:
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
    in:
      exported_model: export/exported_model
      candidates:
        source: [quantize/int8_candidate, export_pruned/exported_model, quantize_pruned/int8_candidate]
        linkMerge: merge_flattened
        pickValue: all_non_null  # without `pruned`, its steps do not run
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
      segmentation_model: gate/accepted_model
      case_batch: preprocess/inference_batches
      gpus: inference_gpus
      threshold: threshold
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
        pickValue: all_non_null  # deidentify and train_distributed may not have run
    out: [report, run_report]
