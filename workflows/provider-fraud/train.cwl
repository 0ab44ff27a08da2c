#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Train a model that classifies the claims of providers, and evaluate it on held-out rows
doc: |
  Encodes a table of claims with a list of excluded providers, draws training rows of both classes by random under-sampling, trains a
  multi-layer perceptron with local SGD (the weights of all ranks are averaged after each epoch), classifies the test rows, evaluates them,
  and writes a report. The defaults are those of Parallel SGD on Medicare Part B, where the paper prints them. Other omitted inputs
  have the defaults of the verbs.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with the tables, their schema and the list of excluded providers
    type: Directory
  tables:
    doc: names of tables with the same columns, below the folder
    type: string[]
    default: [claims.tsv]
  table_schema:
    doc: name of the file that declares every column, below the folder
    type: string
    default: schema.yml
  target_list:
    doc: name of the list of excluded providers, below the folder; only for a schema with listed_target
    type: string?
  fractions:
    doc: fractions of each class for training, validation and test, with sum 1; without validation rows the last weights are kept
    type: float[]
    default: [0.8, 0.0, 0.2]
  split_by:
    doc: draw rows, as the paper does, or keep the rows of a provider together (row, group)
    type: {type: enum, symbols: [row, group]}
    default: row
  ratio:
    doc: training rows of the larger class for each row of the smaller one; the paper has 1, 5, 10, 25, 50, 100, 500, 1000, 1500 and 2000
    type: int
    default: 1
  test_ratio:
    doc: the same for the test rows, equal for all ratios of the training
    type: int
    default: 1
  rows_per_part:
    doc: maximum number of rows of a part, and of the test rows that one job classifies
    type: int?
  split_seed:
    doc: random seed of split and under-sampling
    type: int
    default: 0
  training_layers:
    doc: YAML file of the network's layers, such as mlp.yml of this folder
    type: File
    format: edam:format_3750  # YAML
  training_epochs:
    doc: number of passes over the training rows; with local-sgd the weights are averaged after each
    type: int
    default: 10
  training_batch_size:
    doc: rows per optimizer step, summed over all ranks
    type: int
    default: 128
  training_learning_rate:
    doc: learning rate of plain gradient descent
    type: float
    default: 0.01
  training_validation_interval:
    doc: validation interval, in epochs
    type: int?
  training_chunk_mib:
    doc: MiB of rows that a rank keeps in memory; each chunk of an epoch is trained from the last average
    type: int?
  training_seed:
    doc: random seed of weight initialization and of the order of the rows
    type: int
    default: 0
  training_strategy:
    doc: distribution strategy of the training, a name listed by `medweave-step train --help`
    type: string
    default: local-sgd
  training_ranks:
    doc: number of ranks, over all nodes
    type: int
    default: 1
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
    doc: classes and probabilities of the test rows (CSV), one folder per batch
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
      target_list: target_list
      fractions: fractions
      split_by: split_by
      ratio: ratio
      test_ratio: test_ratio
      rows_per_part: rows_per_part
      seed: split_seed
    out: [training_set, inference_batches, run_report]
  train:
    run: ../tools/train.cwl
    in:
      training_set: encode_table/training_set
      task: {default: classification}
      sampling: {default: natural}
      network_file: training_layers
      epochs: training_epochs
      batch_size: training_batch_size
      optimizer: {default: sgd}
      momentum: {default: 0.0}
      learning_rate: training_learning_rate
      schedule: {default: constant}
      validation_interval: training_validation_interval
      chunk_mib: training_chunk_mib
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
