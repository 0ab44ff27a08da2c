#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Train a model that classifies the care purpose of inpatients by their codes, and evaluate it on held-out patients
doc: |
  Encodes a table of patients with a sparse binary matrix of their codes, trains a multi-layer perceptron, classifies the test rows,
  evaluates them, and writes a report. The defaults are those of DiagnoseNET, where the paper prints them. Other omitted inputs have
  the defaults of the verbs.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with the table of patients, its schema and the matrix of their codes
    type: Directory
  tables:
    doc: names of tables with the same columns, below the folder
    type: string[]
    default: [inpatients.csv]
  table_schema:
    doc: name of the file that declares every column, below the folder
    type: string
    default: schema.yml
  matrix:
    doc: name of the sparse binary matrix of codes (.npz), below the folder, with a row for each row of the tables
    type: string?
    default: codes.npz
  fractions:
    doc: fractions of each class for training, validation and test, with sum 1
    type: float[]
    default: [0.85, 0.05, 0.1]
  split_by:
    doc: draw rows, or keep the rows of a patient together if the schema declares patients as group (row, group)
    type: {type: enum, symbols: [row, group]}
    default: row
  rows_per_part:
    doc: maximum number of rows of a part, and of the test rows that one job classifies
    type: int?
  split_seed:
    doc: random seed of the split
    type: int
    default: 0
  training_units:
    doc: units of each hidden layer
    type: int
    default: 512
  training_hidden_layers:
    doc: hidden layers
    type: int
    default: 4
  training_dropout:
    doc: dropout rate after each hidden layer; the paper's 0.8 is the share that is kept
    type: float
    default: 0.2
  training_epochs:
    doc: maximum number of passes over the training rows
    type: int
    default: 40
  training_best_by:
    doc: what selects the best weights and stops early, score (macro-F1, the default) or loss (validation loss, as DiagnoseNET)
    type: string?
  training_patience:
    doc: early stopping, number of epochs without a better validation score; 0 disables it
    type: int
    default: 3
  training_batch_size:
    doc: rows per optimizer step, summed over all ranks or workers; their number need not divide it
    type: int
    default: 768
  training_learning_rate:
    doc: learning rate of Adam
    type: float
    default: 0.001
  training_seed:
    doc: random seed of weight initialization and of the order of the rows
    type: int
    default: 0
  training_strategy:
    doc: distribution strategy of the training, a name listed by `medweave-step train --help`
    type: string
    default: ddp
  training_ranks:
    doc: number of ranks, over all nodes; of parameter-server, one more than its workers
    type: int
    default: 1
  training_coordination:
    doc: of parameter-server, whether every worker waits for the slowest one (sync, the default) or no worker waits for another (async)
    type: string?
  training_rule:
    doc: what a worker of parameter-server sends, by default sync-gradient, or async-weights with async
    type: string?
  training_quorum:
    doc: number of updates that an asynchronous parameter server averages before it changes its weights, by default 1
    type: int?
  training_weighting:
    doc: weight of the server's own weights when updates arrive, with rule async-weights; by default 1
    type: float?
  training_worker_timeout:
    doc: seconds without a heartbeat after which a worker counts as lost, with training_coordination async; by default 40
    type: float?
  training_transport:
    doc: how server and workers of parameter-server exchange messages (gloo, the default, grpc or mpi)
    type: string?
  training_threads:
    doc: compute threads of each rank; weights are reproducible only for equal numbers
    type: int?
outputs:
  trained_model:
    doc: model folder with ONNX and OpenVINO, and the encoder of the columns
    type: Directory
    outputSource: export/exported_model
  training_log:
    doc: TensorBoard events, and the curves as JSON
    type: Directory
    outputSource: train/training_log
  classifications:
    doc: classes and calibrated probabilities of the test rows (CSV), one folder per batch
    type: Directory[]
    outputSource: classify/classifications
  evaluation:
    doc: metrics of all classes and of each class, with 95 % intervals, and of logistic regression on the same rows
    type: Directory
    outputSource: evaluate/evaluation
  evaluation_report:  # the step has the name `report`, and one document has one namespace
    doc: reproducible part of the report
    type: Directory
    outputSource: report/report
steps:
  encode_table:
    run: ../tools/encode-table.cwl
    in:
      cohort: cohort
      tables: tables
      table_schema: table_schema
      matrix: matrix
      fractions: fractions
      split_by: split_by
      rows_per_part: rows_per_part
      seed: split_seed
    out: [training_set, inference_batches, run_report]
  train:
    run: ../tools/train.cwl
    in:
      training_set: encode_table/training_set
      name: {default: care-purpose}
      task: {default: classification}
      sampling: {default: natural}
      network: {default: mlp}
      units: training_units
      hidden_layers: training_hidden_layers
      hidden_dropout: training_dropout
      epochs: training_epochs
      patience: training_patience
      best_by: training_best_by
      batch_size: training_batch_size
      optimizer: {default: adam}
      learning_rate: training_learning_rate
      schedule: {default: constant}
      validation_interval: {default: 1}
      seed: training_seed
      strategy: training_strategy
      ranks: training_ranks
      coordination: training_coordination
      rule: training_rule
      quorum: training_quorum
      weighting: training_weighting
      worker_timeout: training_worker_timeout
      transport: training_transport
      threads_per_rank: training_threads
    out: [trained_model, training_log, run_report]
  export:
    run: ../tools/export.cwl
    in:
      trained_model: train/trained_model
    out: [exported_model, run_report]
  classify:
    run: ../tools/classify.cwl
    scatter: case_batch
    in:
      classification_model: export/exported_model
      case_batch: encode_table/inference_batches
    out: [classifications, run_report]
  evaluate:
    run: ../tools/evaluate.cwl
    in:
      classifications: classify/classifications
      training_set: encode_table/training_set
      case_batches: encode_table/inference_batches
    out: [evaluation, run_report]
  report:
    run: ../tools/report.cwl
    in:
      title: {default: Medical care purpose of inpatients}
      evaluation: evaluate/evaluation
      classifications: classify/classifications
      case_batches: encode_table/inference_batches
      training_log: train/training_log
      run_reports:
        source:
          - encode_table/run_report
          - train/run_report
          - export/run_report
          - classify/run_report
          - evaluate/run_report
        linkMerge: merge_flattened
    out: [report, run_report]
