#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Encode the rows of a table as input of a network, and split them
doc: |
  Reads tables (CSV, TSV, Parquet) with a schema that declares every column, fits the encoding on the training rows, and writes training set
  and test batches. Or applies the encoder of a model to all rows. Omitted options have the defaults of the verb.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 43200}  # s
baseCommand: [medweave-step, encode-table]
arguments:
  - {prefix: --output, valueFrom: encoded}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  cohort:
    doc: folder with the tables and the files that belong to them
    type: Directory
    inputBinding: {prefix: --cohort}
  tables:
    doc: names of tables with the same columns, below the folder; read one after the other
    type: string[]
    inputBinding: {prefix: --tables}
  table_schema:
    doc: name of the YAML or JSON file that declares every column, below the folder; not with a model
    type: string?
    inputBinding: {prefix: --table-schema}
  trained_model:
    doc: model folder whose encoder is applied, instead of table_schema
    type: Directory?
    inputBinding: {prefix: --model}
  target_list:
    doc: name of the table that lists the rows of one class, below the folder
    type: string?
    inputBinding: {prefix: --target-list}
  matrix:
    doc: name of a sparse binary matrix (.npz) with further columns, below the folder
    type: string?
    inputBinding: {prefix: --matrix}
  fractions:
    doc: fractions of each class for training, validation and test, with sum 1
    type: float[]?
    inputBinding: {prefix: --fractions}
  split_by:
    doc: draw rows, or groups of rows such as those of one patient (row, group)
    type: {type: enum, symbols: [row, group]}
    default: row
    inputBinding: {prefix: --split-by}
  ratio:
    doc: training rows of the larger of two classes for each row of the smaller one; by default all rows
    type: int?
    inputBinding: {prefix: --ratio}
  test_ratio:
    doc: the same for the test rows
    type: int?
    inputBinding: {prefix: --test-ratio}
  nodes:
    doc: number of equal partitions of the training rows, each split into parts of at most rows_per_part rows; train distributes the rows of all parts over its ranks
    type: int?
    inputBinding: {prefix: --nodes}
  rows_per_part:
    doc: maximum number of rows of a part, and of a test batch
    type: int?
    inputBinding: {prefix: --rows-per-part}
  seed:
    doc: random seed of split and under-sampling
    type: int?
    inputBinding: {prefix: --seed}
outputs:
  training_set:
    doc: training and validation rows with the encoder (no rows with a model)
    type: Directory
    outputBinding: {glob: encoded/training_set}
  inference_batches:
    doc: test rows, one folder per batch; all rows with a model
    type: Directory[]
    outputBinding: {glob: encoded/inference_batches/*}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
