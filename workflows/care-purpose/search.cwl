#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Search units, layers, batch size and workers for the care purpose of inpatients, and evaluate the best model on held-out patients
doc: |
  The hyperparameter search of DiagnoseNET: a grid of networks, batch sizes and numbers of workers. Its networks are in three groups by
  parameters. `only` selects the part of the grid that is trained; the report counts the skipped combinations of each group. Every trial is
  a job of its own, with as many processes as its ranks.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
  StepInputExpressionRequirement: {}
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
  grid:
    doc: options of train and the values to search, such as paper-grid.json of this folder
    type: File
    format: edam:format_3464  # JSON
  only:
    doc: train only the combinations with these values of the grid, NAME=VALUE,VALUE for each option, or group=NAME
    type: string[]?
  metric:
    doc: metric for model selection (higher is better)
    type: string
    default: validation_macro_f1
  objectives:
    doc: what to optimize, NAME:max or NAME:min of score, seconds and wh; the first one selects the model (by default score:max)
    type: string[]?
  repeats:
    doc: trainings of each combination of options, with different seeds (by default 1)
    type: int?
  cores_per_trial:
    doc: CPUs that the job of each trial requests on each node; the largest number of ranks of the trials gives each process its own
    type: int
    default: 1
  gpus_per_trial:
    doc: GPUs that the job of each trial requests, over all nodes
    type: int
    default: 0
  threads_per_trial:
    doc: compute threads of each trial, over all its ranks; weights are reproducible only for equal numbers
    type: int?
  memory_mib:
    doc: memory of the job of each trial, MiB
    type: int
    default: 3072
outputs:
  search_result:
    doc: result table (JSON and CSV) and the files of each trial
    type: Directory
    outputSource: collect/result
  search_report:
    doc: run report of the search, with start and end of each trial
    type: File
    format: edam:format_3464  # JSON
    outputSource: collect/run_report
  best_model:
    doc: model folder of the best trial, with ONNX and OpenVINO, and the encoder of the columns
    type: Directory
    outputSource: export/exported_model
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
  plan:
    run: ../tools/search.cwl
    in:
      part: {default: plan}
      gpus: {default: 0}
      grid: grid
      only: only
      repeats: repeats
    out: [trials, run_report]
  trial:
    run: ../tools/search.cwl
    scatter: trial
    hints:
      medweave:Gang: {}  # a trial may have several nodes; the other parts of the search are one process each
    in:
      part: {default: trial}
      trial: plan/trials
      training_set: encode_table/training_set
      metric: metric
      slots: cores_per_trial
      gpus: gpus_per_trial
      memory_mib: memory_mib
      threads_per_trial: threads_per_trial
    out: [result, run_report]
  collect:
    run: ../tools/search.cwl
    in:
      part: {default: collect}
      gpus: {default: 0}
      grid: grid
      only: only
      results: trial/result
      metric: metric
      objectives: objectives
      repeats: repeats
    out: [result, best_model, run_report]
  export:
    run: ../tools/export.cwl
    in:
      trained_model:
        source: collect/best_model
        valueFrom: $(self)  # of type Directory?: the tool has none in its other parts
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
      run_reports:
        source:
          - encode_table/run_report
          - collect/run_report
          - export/run_report
          - classify/run_report
          - evaluate/run_report
        linkMerge: merge_flattened
    out: [report, run_report]
