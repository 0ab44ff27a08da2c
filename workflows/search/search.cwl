#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Hyperparameter search, all trials in one job
doc: |
  Experiment parallelism by Ray Tune on one machine. The number of concurrent trials is `slots`; with the scheduler `asha`, trials that
  perform worse than others stop early. `scatter.cwl` is the same search with one job per trial. Omitted inputs have the defaults of the verb.
$namespaces: {edam: "http://edamontology.org/"}
inputs:
  training_set:
    doc: training_set of preprocess, cases of the training and validation split with labels
    type: Directory
  grid:
    doc: options of train and the values to search
    type: File
    format: edam:format_3464  # JSON
  metric:
    doc: metric for model selection (higher is better)
    type: string?
  objectives:
    doc: what to optimize, NAME:max or NAME:min of score, seconds and wh; the first one selects the model (by default score:max)
    type: string[]?
  repeats:
    doc: trainings of each combination of options, with different seeds (by default 1)
    type: int?
  slots:
    doc: number of concurrent trials
    type: int
    default: 1
  memory_mib:
    doc: memory of the job, MiB; about 3 GiB per concurrent trial
    type: int
    default: 3072
  threads_per_trial:
    doc: compute threads of each trial; weights are reproducible only for equal numbers
    type: int?
  scheduler:
    doc: train every trial to completion (all), or stop trials that perform worse than others early (asha)
    type: {type: enum, symbols: [all, asha]}
    default: all
  grace_epochs:
    doc: minimum number of epochs per trial with asha
    type: int?
  reduction_factor:
    doc: reduction factor of asha, 1 in this many trials continues to the next rung
    type: int?
outputs:
  search_result:
    doc: result table (JSON and CSV) and the files of each trial
    type: Directory
    outputSource: search/result
  best_model:
    doc: model folder of the best trial
    type: Directory?  # the tool has none in its other parts
    outputSource: search/best_model
steps:
  search:
    run: ../tools/search.cwl
    in:
      grid: grid
      training_set: training_set
      metric: metric
      objectives: objectives
      repeats: repeats
      slots: slots
      gpus: slots
      memory_mib: memory_mib
      threads_per_trial: threads_per_trial
      scheduler: scheduler
      grace_epochs: grace_epochs
      reduction_factor: reduction_factor
    out: [result, best_model, run_report]
