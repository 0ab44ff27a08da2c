#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Compare training times over numbers of nodes and sizes of the training set
doc: |
  The timed trainings of Parallel SGD on Medicare Part B: local SGD for each ratio of under-sampling, number of nodes and trial. The
  statistics have for each ratio an analysis of variance of the seconds over the numbers of nodes, Tukey's test with letters, and box plots. A
  time is from the start of the ranks to the finished model. The defaults are the paper's: ten ratios, five numbers of nodes, 20 trials.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
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
    doc: fractions of each class for training, validation and test, with sum 1
    type: float[]
    default: [0.8, 0.0, 0.2]
  ratios:
    doc: training rows of the larger class for each row of the smaller one; an analysis for each
    type: int[]
    default: [1, 5, 10, 25, 50, 100, 500, 1000, 1500, 2000]
  nodes:
    doc: numbers of ranks, which are compared; one rank is a node of the paper
    type: int[]
    default: [1, 2, 4, 8, 16]
  trial_seeds:
    doc: random seed of each trial; as many trainings for each ratio and number of nodes as seeds, at least 2
    type: int[]
    default: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
  split_seed:
    doc: random seed of split and under-sampling
    type: int
    default: 0
  training_layers:
    doc: YAML file of the network's layers, such as mlp.yml of this folder
    type: File
    format: edam:format_3750  # YAML
  training_epochs:
    doc: number of passes over the training rows; the weights are averaged after each
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
  training_threads:
    doc: compute threads of each rank
    type: int
    default: 1
  response:
    doc: the time that is compared, seconds (of the whole training) or step_seconds (of its optimizer steps)
    type: string
    default: seconds
  alpha:
    doc: probability of an error of the first kind over all pairs of an analysis, by default 0.05
    type: float?
outputs:
  statistics:
    doc: measurements, tables (CSV, JSON) and fragment.html, a page with the tables and box plots
    type: Directory
    outputSource: stats/statistics
  training_reports:
    doc: run report of each training
    type: File[]
    format: edam:format_3464  # JSON
    outputSource: train/run_report
steps:
  encode_table:
    run: ../tools/encode-table.cwl
    scatter: ratio
    in:
      cohort: cohort
      tables: tables
      table_schema: table_schema
      target_list: target_list
      fractions: fractions
      ratio: ratios
      seed: split_seed
    out: [training_set, run_report]
  train:
    run: ../tools/train.cwl
    scatter: [training_set, ranks, seed]
    scatterMethod: flat_crossproduct
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
      seed: trial_seeds
      strategy: {default: local-sgd}
      ranks: nodes
      threads_per_rank: training_threads
    out: [run_report]
  stats:
    run: ../tools/stats.cwl
    in:
      run_reports: train/run_report
      response: response
      alpha: alpha
      factor: {default: ranks}
      by: {default: ratio}
    out: [statistics, run_report]
