#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Train a model that classifies the heart rhythm of ECG recordings, and evaluate it on the test split
doc: |
  De-identifies a folder of single-lead ECG recordings with their rhythms, cuts samples of five heartbeats, and trains a residual network
  of 75 convolutions. Writes the model with the runtime that gate chose for the machine type of classify, the calibrated probabilities of
  the test samples, their evaluation, and a report. All samples of a recording are in one split. Omitted inputs have the defaults of the
  verbs.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with ECG recordings of one lead (WFDB, .hea with .mat or .dat) and REFERENCE.csv, the rhythm of each
    type: Directory
  identified:
    doc: the cohort contains patient identities; it is then de-identified first, and the later steps use the result
    type: boolean
    default: true
  pseudonym_key:
    doc: pseudonym key of an earlier run, for the same pseudonyms, dates and splits; by default each run creates a new key
    type: File?
    format: edam:format_2333  # binary
  on_error:
    doc: invalid recordings, stop after all errors are reported (stop) or skip these recordings (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  fractions:
    doc: fractions of recordings for training, validation and test, with sum 1; splits fixed by the cohort do not change
    type: float[]?
  split_seed:
    doc: random seed of the assignment of recordings to splits
    type: int
    default: 0
  cases_per_batch:
    doc: number of samples that one job classifies at most; those of one recording stay together
    type: int
    default: 256
  training_network:
    doc: network, a name listed by `medweave-step train --help`
    type: string
    default: ecg-resnet
  training_width:
    doc: width multiplier, the channels of every layer as a fraction of the full network's 64; 0.125 has 8
    type: float?
  training_initial_model:
    doc: model folder or MONAI Bundle whose weights the training begins with, where name and shape match
    type: Directory?
  training_steps:
    doc: number of optimizer steps
    type: int?
  training_batch_size:
    doc: samples per optimizer step
    type: int?
  training_learning_rate:
    doc: peak of the learning rate
    type: float
    default: 0.001
  training_epoch_steps:
    doc: optimizer steps per epoch; the validation interval counts epochs
    type: int?
  training_validation_interval:
    doc: validation interval, in epochs
    type: int?
  training_patience:
    doc: early stopping, number of validations without a better validation score; by default 0, which disables it
    type: int?
  training_sampling:
    doc: whether each class (balanced) or each sample (natural) is drawn with equal probability; by default balanced
    type: string?
  training_class_weights:
    doc: weights of the classes in the loss (none, balanced); balanced needs training_sampling natural
    type: string?
  training_label_smoothing:
    doc: how far the truth of the loss is moved towards equal probabilities, 0 to less than 1
    type: float?
  training_seed:
    doc: random seed of weight initialization, drawn samples and augmentation
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
  training_sync_interval:
    doc: optimizer steps of local-sgd between two synchronization points; by default one epoch
    type: int?
  training_coordination:
    doc: of parameter-server, whether every worker waits for the slowest one (sync, the default) or no worker waits for another (async)
    type: string?
  training_rule:
    doc: what a worker of parameter-server sends, by default sync-gradient, or async-weights with training_coordination async
    type: string?
  training_quorum:
    doc: number of updates that an asynchronous parameter server averages before it changes its weights, by default 1
    type: int?
  training_weighting:
    doc: weight of the server's own weights when updates arrive, with training_rule async-weights; by default 1
    type: float?
  training_worker_timeout:
    doc: seconds without a heartbeat after which a worker counts as lost, with training_coordination async; by default 40
    type: float?
  training_transport:
    doc: how server and workers of parameter-server exchange messages (gloo, the default, grpc or mpi)
    type: string?
  training_batch_norm_statistics:
    doc: of parameter-server, whether running statistics of batch norm are averaged (averaged, the default) or kept by each worker (local)
    type: string?
  training_threads:
    doc: compute threads of each rank; weights are reproducible only for equal numbers
    type: int?
  gate_candidates:
    doc: runtime to accept whatever its speed, such as float32:openvino; by default gate decides by the speed that it measures, which differs between machines
    type: string?
  inference_gpus:
    doc: GPUs to request for each job of gate and classify, 0 or 1
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
    doc: classes and calibrated probabilities of the test samples (CSV), one folder per batch
    type: Directory[]
    outputSource: classify/classifications
  evaluation:
    doc: metrics of all classes and of each class, with 95 % intervals, and of logistic regression on amplitudes
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
      on_error: on_error
    out: [deidentified_cohort, home, run_report]
  check:
    run: ../tools/check.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
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
      fractions: fractions
      split_seed: split_seed
      cases_per_batch: cases_per_batch
    out: [training_set, inference_batches, run_report]
  train:
    run: ../tools/train.cwl
    in:
      training_set: preprocess/training_set
      task: {default: classification}
      network: training_network
      width: training_width
      initial_model: training_initial_model
      training_steps: training_steps
      batch_size: training_batch_size
      learning_rate: training_learning_rate
      epoch_steps: training_epoch_steps
      validation_interval: training_validation_interval
      patience: training_patience
      sampling: training_sampling
      class_weights: training_class_weights
      label_smoothing: training_label_smoothing
      seed: training_seed
      strategy: training_strategy
      ranks: training_ranks
      sync_interval: training_sync_interval
      coordination: training_coordination
      rule: training_rule
      quorum: training_quorum
      weighting: training_weighting
      worker_timeout: training_worker_timeout
      transport: training_transport
      batch_norm_statistics: training_batch_norm_statistics
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
  evaluate:
    run: ../tools/evaluate.cwl
    in:
      cohort_index: check/cohort_index
      training_set: preprocess/training_set
      classifications: classify/classifications
      case_batches: preprocess/inference_batches
    out: [evaluation, run_report]
  report:
    run: ../tools/report.cwl
    in:
      evaluation: evaluate/evaluation
      classifications: classify/classifications
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
          - evaluate/run_report
        linkMerge: merge_flattened
        pickValue: all_non_null  # deidentify may not have run
    out: [report, run_report]
