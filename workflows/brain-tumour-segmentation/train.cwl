#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Train a brain tumour segmentation model, and segment and judge the held-out cases with it
doc: |
  From a folder of brain MR in the format of MSD Task01, four contrasts with masks, to a model of the whole tumour, the masks of the test
  split, their comparison with the ground truth, and a report with the time that each number of ranks took. The defaults are those of
  DistMIS: whole volumes of 240 x 240 x 152 voxels, Dice loss, Adam with 1e-4 and a batch of 2 for each rank, 250 epochs.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder of an MSD data set of MR, dataset.json with imagesTr and labelsTr
    type: Directory
  on_error:
    doc: stop at bad cases after all findings were told, or skip these cases
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  spacing_mm:
    doc: voxel size the network works on, along Right, Anterior, Superior, mm
    type: float[]?
  merge_labels:
    doc: values of the masks that count as one label, and its name; the three parts of MSD Task01 become the whole tumour
    type: string[]
    default: ["1,2,3:whole tumour"]
  fractions:
    doc: shares of patients for training, validation and test, with sum 1
    type: float[]
    default: [0.7, 0.15, 0.15]
  split_seed:
    doc: seed of the draw of patients into splits
    type: int
    default: 0
  cases_per_batch:
    doc: most cases that one job segments
    type: int
    default: 8
  network:
    doc: the network of the paper's text (distmis-as-described), the one of its number of parameters (distmis-as-published), MONAI's (unet), or another that `medweave-step train --help` lists
    type: string
    default: distmis-as-described
  norm:
    doc: normalisation of the network (batch, group, instance)
    type: {type: enum, symbols: [batch, group, instance]}
    default: batch
  volume_shape:
    doc: voxels of a whole prepared volume along I, J, K; multiples of 8
    type: int[]
    default: [240, 240, 152]
  epochs:
    doc: passes over the training cases
    type: int
    default: 250
  batch_size:
    doc: volumes per step and rank
    type: int
    default: 2
  learning_rate:
    doc: learning rate of one rank; it is multiplied by the ranks
    type: float
    default: 0.0001
  beta2:
    doc: decay of Adam's mean of squared gradients
    type: float?
  amsgrad:
    doc: Adam that divides by the largest such mean so far
    type: boolean?
  dice_smoothing:
    doc: voxels added to both sides of the Dice's fraction, the paper's epsilon
    type: float
    default: 0.1
  training_seed:
    doc: seed of weights and of the order of the cases
    type: int
    default: 0
  training_strategy:
    doc: how a training is spread over processes, by a name that `medweave-step train --help` lists
    type: string
    default: ddp
  training_ranks:
    doc: processes of the training, over all nodes together
    type: int
    default: 1
  training_chunk_mib:
    doc: MiB of cases that a rank of local-sgd keeps in memory; its epoch is cut into chunks that fit, which are trained apart and averaged
    type: int?
  training_cache_mib:
    doc: MiB of cases that a rank keeps in memory ready to use; else it cuts them from their files in each epoch
    type: int?
  timed_ranks:
    doc: other numbers of ranks that the same training is done by, one after another, for the table of the report
    type: int[]
    default: []
  training_threads:
    doc: compute threads of each rank; equal numbers give equal weights, wherever they are trained
    type: int?
outputs:
  exported_model:
    doc: model folder, also a MONAI Bundle
    type: Directory
    outputSource: export/exported_model
  training_log:
    doc: TensorBoard events, and the curves as JSON
    type: Directory
    outputSource: train/training_log
  segmentations:
    doc: the test cases' masks (NIfTI) and lesion tables (CSV), one folder per batch
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
steps:
  check:
    run: ../tools/check.cwl
    in:
      cohort: cohort
      merge_labels: merge_labels
      on_error: on_error
    out: [cohort_index, run_report]
  preprocess:
    run: ../tools/preprocess.cwl
    in:
      cohort: cohort
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
      network: network
      norm: norm
      epochs: epochs
      batch_size: batch_size
      patch_shape: volume_shape
      window_shape: volume_shape
      learning_rate: learning_rate
      schedule: {default: constant}
      beta2: beta2
      amsgrad: amsgrad
      dice: {default: sample}
      dice_smoothing: dice_smoothing
      cross_entropy_weight: {default: 0.0}
      seed: training_seed
      strategy: training_strategy
      scale_by_ranks: {default: true}
      ranks: training_ranks
      chunk_mib: training_chunk_mib
      cache_mib: training_cache_mib
      threads_per_rank: training_threads
    out: [trained_model, training_log, run_report]
  train_timed:  # the time of other numbers of ranks; their models are not used
    run: ../tools/train.cwl
    scatter: ranks
    in:
      training_set: preprocess/training_set
      name: {default: brain-tumour}
      network: network
      norm: norm
      epochs: epochs
      batch_size: batch_size
      patch_shape: volume_shape
      window_shape: volume_shape
      learning_rate: learning_rate
      schedule: {default: constant}
      beta2: beta2
      amsgrad: amsgrad
      dice: {default: sample}
      dice_smoothing: dice_smoothing
      cross_entropy_weight: {default: 0.0}
      seed: training_seed
      strategy: training_strategy
      scale_by_ranks: {default: true}
      ranks: timed_ranks
      chunk_mib: training_chunk_mib
      cache_mib: training_cache_mib
      threads_per_rank: training_threads
    out: [run_report]
  export:
    run: ../tools/export.cwl
    in:
      trained_model: train/trained_model
    out: [exported_model, run_report]
  segment:
    run: ../tools/segment.cwl
    scatter: case_batch
    in:
      segmentation_model: export/exported_model
      case_batch: preprocess/inference_batches
    out: [segmentations, run_report]
  evaluate:
    run: ../tools/evaluate.cwl
    in:
      cohort: cohort
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
      training_log: train/training_log
      run_reports:
        source:
          - check/run_report
          - preprocess/run_report
          - train/run_report
          - train_timed/run_report
          - export/run_report
          - segment/run_report
          - evaluate/run_report
        linkMerge: merge_flattened
    out: [report, run_report]
