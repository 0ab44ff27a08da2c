#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Train a lung nodule segmentation model, and segment and judge the held-out cases with it
doc: |
  From a folder of chest CT with masks, de-identified first, to a model that is accepted for this kind of machine, the nodules of the test split as
  DICOM SEG, their comparison with the ground truth, and a report. With `distributed` the first weights are trained further by
  replicas that are averaged, where the site file puts that step. Inputs that are left out take the defaults of the verbs.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with chest CT and masks (DICOM series with DICOM SEG, an MSD data set, or NIfTI)
    type: Directory
  identified:
    doc: whether the cohort names people; it is de-identified first, then, and the later steps get the result
    type: boolean
    default: true
  pseudonym_key:
    doc: key of an earlier run, for the same pseudonyms, dates and draw of patients; without it each run makes its own
    type: File?
    format: edam:format_2333  # binary
  labels:
    doc: labels of the masks with their DICOM codes, the name of a preset
    type: string
    default: lung-nodule
  label_file:
    doc: labels of the masks as a JSON list of value, name, category, type, anatomy and laterality, in the place of a preset
    type: File?
    format: edam:format_3464  # JSON
  merge_labels:
    doc: values of the masks that count as one label, and its name, such as "1,2:nodule"; labels are never merged without it
    type: string[]?
  on_error:
    doc: stop at bad cases after all findings were told, or skip these cases
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  spacing_mm:
    doc: voxel size the network works on, along Right, Anterior, Superior, mm
    type: float[]?
  window_hu:
    doc: lowest and highest value the network sees, HU
    type: float[]?
  fractions:
    doc: shares of patients for training, validation and test, with sum 1; splits that the cohort fixes stay as they are
    type: float[]?
  split_seed:
    doc: seed of the draw of patients into splits
    type: int
    default: 0
  cases_per_batch:
    doc: most cases that one job segments
    type: int
    default: 8
  training_steps:
    doc: optimiser steps
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
    doc: seed of weights, patches and augmentation
    type: int
    default: 0
  training_strategy:
    doc: how the first training is spread over processes, by a name that `medweave-step train --help` lists
    type: string
    default: single
  training_ranks:
    doc: processes of a strategy that has several, over all nodes together
    type: int
    default: 1
  training_sync_interval:
    doc: steps of local-sgd between two averages of the weights; else an epoch
    type: int?
  training_threads:
    doc: compute threads of each rank and replica; equal numbers give equal weights, wherever they are trained
    type: int?
  distributed:
    doc: whether the model of the first training is trained further by averaged replicas
    type: boolean
    default: false
  distributed_rounds:
    doc: times that the replicas are trained apart and averaged
    type: int?
  distributed_steps_per_round:
    doc: optimiser steps of each replica between two averages
    type: int?
  distributed_replicas:
    doc: copies of the network
    type: int?
  distributed_engine:
    doc: what spreads the replicas; auto is what the deployment says, else in-order
    type: {type: enum, symbols: [auto, in-order, ddp, compss]}
    default: auto
  gate_max_slowdown:
    doc: |
      an int8 model that is smaller and no faster may take this many times float32's seconds where it segments. About 1.1, which is
      what it is without it, two runs may choose differently; a large number leaves the choice to what is segmented.
    type: float?
  threshold:
    doc: probability from which a voxel of a segmented case belongs to a lesion, between 0 and 1; without it the one on the model's card
    type: float?
outputs:
  accepted_model:
    doc: model folder, also a MONAI Bundle; its card pins the precision that the gate accepted
    type: Directory
    outputSource: gate/accepted_model
  gate_decision:
    doc: what was measured and decided about each candidate
    type: File
    format: edam:format_3464  # JSON
    outputSource: gate/gate_decision
  training_log:
    doc: TensorBoard events, and the curves as JSON
    type: Directory
    outputSource: [train_distributed/training_log, train/training_log]
    pickValue: first_non_null
  segmentations:
    doc: the test cases' masks (NIfTI, DICOM SEG) and lesion tables (CSV, DICOM SR), one folder per batch
    type: Directory[]
    outputSource: segment/segmentations
  evaluation:
    doc: metrics per case and pooled, with 95 % intervals
    type: Directory
    outputSource: evaluate/evaluation
  evaluation_report:  # the step has the name `report`, and one document has one namespace
    doc: the report's deterministic part
    type: Directory
    outputSource: report/report
  home:
    doc: who is who, and a new key; identified data, for those who hold the cohort, and for nobody else
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
      window_hu: window_hu
      fractions: fractions
      split_seed: split_seed
      cases_per_batch: cases_per_batch
    out: [training_set, inference_batches, run_report]
  train:
    run: ../tools/train.cwl
    in:
      training_set: preprocess/training_set
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
  gate:
    run: ../tools/gate.cwl
    in:
      exported_model: export/exported_model
      candidates:
        source: [quantize/int8_candidate]
        linkMerge: merge_nested
      training_set: preprocess/training_set
      test_batches: preprocess/inference_batches
      max_slowdown: gate_max_slowdown
    out: [accepted_model, gate_decision, run_report]
  segment:
    run: ../tools/segment.cwl
    scatter: case_batch
    in:
      segmentation_model: gate/accepted_model
      case_batch: preprocess/inference_batches
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
          - gate/run_report
          - segment/run_report
          - evaluate/run_report
        linkMerge: merge_flattened
        pickValue: all_non_null  # deidentify and train_distributed may not have run
    out: [report, run_report]
