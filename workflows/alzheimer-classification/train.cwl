#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Train a model that classifies T1-weighted brain MR, explain its classes, and evaluate it on the test split
doc: |
  De-identifies T1-weighted MR of subjects with their groups, removes everything outside of the given brain masks, and trains a
  3D-ResAttNet on two of the groups. Writes the model with the runtime that gate chose for the machine type of classify, the calibrated
  probabilities and Grad-CAM maps of the test subjects, their evaluation by sex, age and MMSE, and a report. Omitted inputs have the
  defaults of the verbs.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: T1-weighted MR, a BIDS folder or DICOM series, with the groups of the subjects in participants.tsv
    type: Directory
  brain_masks:
    doc: folder of brain masks (NIfTI), one for each scan, as a path below the cohort, such as derivatives/brain; BIDS derivatives, or files named after the scans
    type: string
  identified:
    doc: the cohort contains patient identities; it is then de-identified first, and the later steps use the result
    type: boolean
    default: true
  pseudonym_key:
    doc: pseudonym key of an earlier run, for the same pseudonyms, dates and splits; by default each run creates a new key
    type: File?
    format: edam:format_2333  # binary
  covariates:
    doc: tables (TSV) with sex, age or mmse of the subjects, such as participants.tsv, for the accuracy by each of them; only without identified, which takes what deidentify keeps of participants.tsv
    type: File[]
    format: edam:format_3475  # TSV
    default: []
  kept_columns:
    doc: columns of participants.tsv that deidentify keeps besides sex and age; group is the class, mmse is used by evaluate only
    type: string[]
    default: [group]
  groups:
    doc: groups of participants.tsv to classify, such as AD and NC; subjects of other groups are left out and counted
    type: string[]
  regions:
    doc: folders of label maps of brain structures, for the mass of the maps per region; only without identified, which takes the label maps of the cohort
    type: Directory[]
    default: []
  on_error:
    doc: invalid cases, stop after all errors are reported (stop) or skip these cases (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  channels:
    doc: rules that select the DICOM series of a study, as a JSON list; by default each study has one series
    type: File?
    format: edam:format_3464  # JSON
  spacing_mm:
    doc: voxel size after resampling along Right, Anterior, Superior, mm
    type: float[]
    default: [2.0, 2.0, 2.0]
  shape:
    doc: voxels of a prepared volume along Right, Anterior, Superior; cropped or padded with 0 around the middle of the brain mask
    type: int[]
    default: [96, 112, 96]
  bias_correction:
    doc: correct the intensity of each scan for the bias field of the coil, by N4 (n4); by default none
    type: string?
  fractions:
    doc: fractions of subjects for training, validation and test, with sum 1, in each group; splits fixed by the cohort do not change
    type: float[]?
  split_seed:
    doc: random seed of the assignment of subjects to splits
    type: int
    default: 0
  cases_per_batch:
    doc: maximum number of scans that one job classifies, and that one job explains
    type: int
    default: 32
  training_preset:
    doc: defaults of the other inputs of the training; resattnet is the recipe of the paper of 3D-ResAttNet, 50 epochs
    type: {type: enum, symbols: [demo, resattnet]}
    default: resattnet
  training_network:
    doc: network, a name listed by `medweave-step train --help`; by default resattnet18
    type: string?
  training_attention_stages:
    doc: stages of resattnet18 and resattnet34 (1 to 4) that end with a self-attention; by default the last one
    type: int[]?
  training_width:
    doc: width multiplier, the channels of every layer as a fraction of the full network's
    type: float?
  training_initial_model:
    doc: model folder or MONAI Bundle whose weights the training begins with, where name and shape match
    type: Directory?
  training_epochs:
    doc: number of passes over the training subjects, instead of training_steps
    type: int?
  training_steps:
    doc: number of optimizer steps
    type: int?
  training_batch_size:
    doc: scans per optimizer step
    type: int?
  training_optimizer:
    doc: optimizer (adam, adamw, sgd), by default that of the preset
    type: string?
  training_learning_rate:
    doc: peak of the learning rate
    type: float?
  training_schedule:
    doc: learning-rate schedule, a name listed by `medweave-step train --help`; by default that of the preset
    type: string?
  training_epoch_steps:
    doc: optimizer steps per epoch; the validation interval counts epochs
    type: int?
  training_validation_interval:
    doc: validation interval, in epochs
    type: int?
  training_flip_axes:
    doc: axes (I left to right) along which augmentation mirrors scans; by default none, because disease may differ between the sides
    type: string[]?
  training_seed:
    doc: random seed of weight initialization, drawn scans and augmentation
    type: int
    default: 0
  training_strategy:
    doc: distribution strategy of the training, a name listed by `medweave-step train --help`
    type: string
    default: single
  training_ranks:
    doc: number of ranks of a multi-process strategy, over all nodes
    type: int
    default: 1
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
    doc: compute threads of each rank; weights are reproducible only for equal numbers
    type: int?
  gate_candidates:
    doc: runtime to accept whatever its speed, such as float32:openvino; by default gate decides by the speed that it measures, which differs between machines
    type: string?
  explained_class:
    doc: group whose evidence the maps show; by default the predicted group of each scan
    type: string?
  explained_layer:
    doc: name of the module whose features are weighted; by default the last block of at least 1/8 of the input's resolution
    type: string?
  inference_gpus:
    doc: GPUs to request for each job of gate, classify and explain, 0 or 1
    type: int
    default: 0
outputs:
  accepted_model:
    doc: model folder, also a MONAI Bundle; its card fixes the runtime that gate accepted
    type: Directory
    outputSource: gate/accepted_model
  gate_decision:
    doc: measurements and decision for each runtime
    type: File
    format: edam:format_3464  # JSON
    outputSource: gate/gate_decision
  training_log:
    doc: TensorBoard events, and the curves as JSON
    type: Directory
    outputSource: train/training_log
  classifications:
    doc: groups and calibrated probabilities of the test scans (CSV, DICOM SR too for DICOM sources, if every group of the model has a code), one folder per batch
    type: Directory[]
    outputSource: classify/classifications
  explanations:
    doc: Grad-CAM maps of the test scans on their source grids (NIfTI), pictures, and the mass per region, one folder per batch
    type: Directory[]
    outputSource: explain/explanations
  evaluation:
    doc: metrics of all groups and of each group, with 95 % intervals, and accuracy by sex, age and MMSE
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
      brain_masks_in_cohort: brain_masks
      keep_brain_masks: {default: true}
      keep_columns: kept_columns
      retain_patient_characteristics: {default: true}  # sex and age, for evaluate
      on_error: on_error
    out: [deidentified_cohort, kept_label_maps, kept_participants, home, run_report]
  check:
    run: ../tools/check.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
      targets_in_cohort: {default: participants.tsv}
      classes: groups
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
      brain_masks_in_cohort: brain_masks  # deidentify keeps the place
      spacing_mm: spacing_mm
      shape: shape
      bias_correction: bias_correction
      fractions: fractions
      split_seed: split_seed
      cases_per_batch: cases_per_batch
    out: [training_set, inference_batches, run_report]
  train:
    run: ../tools/train.cwl
    in:
      training_set: preprocess/training_set
      task: {default: classification}
      preset: training_preset
      network: training_network
      attention_stages: training_attention_stages
      width: training_width
      initial_model: training_initial_model
      epochs: training_epochs
      training_steps: training_steps
      batch_size: training_batch_size
      optimizer: training_optimizer
      learning_rate: training_learning_rate
      schedule: training_schedule
      epoch_steps: training_epoch_steps
      validation_interval: training_validation_interval
      flip_axes: training_flip_axes
      seed: training_seed
      strategy: training_strategy
      ranks: training_ranks
      stages: training_stages
      micro_batches: training_micro_batches
      pipelined: training_pipelined
      stage_memory_mib: training_stage_memory_mib
      threads_per_rank: training_threads
    out: [trained_model, training_log, run_report]
  export:
    run: ../tools/export.cwl
    in:
      trained_model: train/trained_model
    out: [exported_model, run_report]
  gate:
    run: ../tools/gate.cwl
    in:
      exported_model: export/exported_model
      training_set: preprocess/training_set
      test_batches: preprocess/inference_batches
      fixed_choice: gate_candidates
      gpus: inference_gpus
    out: [accepted_model, gate_decision, run_report]
  classify:
    run: ../tools/classify.cwl
    scatter: case_batch
    in:
      classification_model: gate/accepted_model
      case_batch: preprocess/inference_batches
      gpus: inference_gpus
    out: [classifications, run_report]
  explain:
    run: ../tools/explain.cwl
    scatter: case_batch
    in:
      classification_model: gate/accepted_model
      case_batch: preprocess/inference_batches
      target_class: explained_class
      layer: explained_layer
      regions:
        source: [deidentify/kept_label_maps, regions]
        linkMerge: merge_flattened
        pickValue: all_non_null  # a cohort needs no label maps
      gpus: inference_gpus
    out: [explanations, run_report]
  evaluate:
    run: ../tools/evaluate.cwl
    in:
      cohort_index: check/cohort_index
      classifications: classify/classifications
      covariates:
        source: [deidentify/kept_participants, covariates]
        linkMerge: merge_flattened
        pickValue: all_non_null
      case_batches: preprocess/inference_batches
    out: [evaluation, run_report]
  report:
    run: ../tools/report.cwl
    in:
      evaluation: evaluate/evaluation
      classifications: classify/classifications
      explanations: explain/explanations
      case_batches: preprocess/inference_batches
      training_log: train/training_log
      run_reports:
        source:
          - deidentify/run_report
          - check/run_report
          - preprocess/run_report
          - train/run_report
          - export/run_report
          - gate/run_report
          - classify/run_report
          - explain/run_report
          - evaluate/run_report
        linkMerge: merge_flattened
        pickValue: all_non_null  # deidentify may not have run
    out: [report, run_report]
