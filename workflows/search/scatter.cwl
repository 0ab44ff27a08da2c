#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Hyperparameter search, one job per trial
doc: |
  Experiment parallelism by the workflow engine. The trials are independent, so they run wherever the site file has room, as many at the same
  time as there are free targets. The same grid gives the same trials, seeds and weights as `search.cwl`. Omitted inputs have the defaults of
  the verb.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
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
  memory_mib:
    doc: memory of the job of each trial, MiB
    type: int
    default: 3072
  threads_per_trial:
    doc: compute threads of each trial; weights are reproducible only for equal numbers
    type: int?
outputs:
  search_result:
    doc: result table (JSON and CSV) and the files of each trial
    type: Directory
    outputSource: collect/result
  best_model:
    doc: model folder of the best trial
    type: Directory?  # the tool has none in its other parts
    outputSource: collect/best_model
steps:
  plan:
    run: ../tools/search.cwl
    in:
      part: {default: plan}
      gpus: {default: 0}
      grid: grid
      repeats: repeats
    out: [trials, run_report]
  trial:
    run: ../tools/search.cwl
    scatter: trial
    in:
      part: {default: trial}
      trial: plan/trials
      training_set: training_set
      metric: metric
      memory_mib: memory_mib
      threads_per_trial: threads_per_trial
    out: [result, run_report]
  collect:
    run: ../tools/search.cwl
    in:
      part: {default: collect}
      gpus: {default: 0}
      grid: grid
      results: trial/result
      metric: metric
      objectives: objectives
      repeats: repeats
    out: [result, best_model, run_report]
