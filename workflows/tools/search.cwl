#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Run a hyperparameter search over a grid, or one part of it
doc: |
  A trial is an independent training with options; its seed depends only on its options. `all` runs all trials in one job. `plan`
  writes one file per trial, `trial` runs one of them, `collect` merges the results into one table; these are the same search as jobs of the
  workflow engine. A failed trial is a row of the table. Omitted options have the defaults of the verb.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ResourceRequirement: {coresMin: $(inputs.slots), ramMin: $(inputs.memory_mib)}  # MiB
  ToolTimeLimit: {timelimit: 172800}  # s
hints:
  # Read by medweave's connectors, ignored by every other runner.
  medweave:GPURequest: {gpusMin: 0, gpusTotal: $(inputs.gpus)}
  medweave:Partial: {}  # if the whole job of a trial is lost, the other trials continue; its row states the cause
baseCommand: [medweave-step, search]
arguments:
  - {prefix: --output, valueFrom: search}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  part:
    doc: part of the search (all, plan, trial, collect)
    type: {type: enum, symbols: [all, plan, trial, collect]}
    default: all
    inputBinding: {prefix: --part}
  grid:
    doc: options of train and the values to search; for all, plan and collect
    type: File?
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --grid}
  trial:
    doc: trial file written by plan; for trial
    type: File?
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --trial}
  training_set:
    doc: preprocessed cases of the training and validation split, with labels; for all and trial
    type: Directory?
    inputBinding: {prefix: --training-set}
  results:
    doc: output folders of the trials; for collect
    type: Directory[]?
    inputBinding: {prefix: --results}
  metric:
    doc: metric for model selection (higher is better); a metric in the run report of train
    type: string?
    inputBinding: {prefix: --metric}
  objectives:
    doc: what to optimize, NAME:max or NAME:min of score, seconds and wh; the first one selects the model; for all and collect
    type: string[]?
    inputBinding: {prefix: --objectives}
  only:
    doc: train only the combinations with these values of the grid, NAME=VALUE,VALUE or group=NAME; for all, plan and collect
    type: string[]?
    inputBinding: {prefix: --only}
  repeats:
    doc: trainings of each combination of options, with different seeds; for all, plan and collect
    type: int?
    inputBinding: {prefix: --repeats}
  slots:
    doc: number of concurrent trials; for all
    type: int
    default: 1
    inputBinding: {prefix: --slots}
  gpus:
    doc: GPUs of the job, one per concurrent trial
    type: int
    default: 1
  memory_mib:
    doc: memory of the job, MiB; about 3 GiB per concurrent trial
    type: int
    default: 3072
  threads_per_trial:
    doc: compute threads of each trial; weights are reproducible only for equal numbers
    type: int?
    inputBinding: {prefix: --threads-per-trial}
  scheduler:
    doc: for all, train every trial to completion (all), or stop trials that perform worse than others early (asha)
    type: {type: enum, symbols: [all, asha]}
    default: all
    inputBinding: {prefix: --scheduler}
  grace_epochs:
    doc: minimum number of epochs per trial with asha
    type: int?
    inputBinding: {prefix: --grace-epochs}
  reduction_factor:
    doc: reduction factor of asha, 1 in this many trials continues to the next rung
    type: int?
    inputBinding: {prefix: --reduction-factor}
outputs:
  trials:
    doc: one file per trial of the grid; from plan
    type: File[]
    format: edam:format_3464  # JSON
    outputBinding: {glob: search/trial-*.json}
  result:
    doc: result table (JSON and CSV) and the files of each trial
    type: Directory
    outputBinding: {glob: search}
  best_model:
    doc: model folder of the best trial; from all and collect
    type: Directory?
    outputBinding: {glob: best_model}
  run_report:
    doc: run report of the search, with start and end of each trial, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
