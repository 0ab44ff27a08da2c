#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Search for the best options of a training, a job for each trial
doc: |
  Experiment parallelism by the workflow engine: the trials share nothing, so they run wherever the site file has room, as many at the same time
  as there are places. The same grid gives the same trials, seeds and weights as `search.cwl`. Inputs that are left out take the defaults of
  the verb.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
inputs:
  training_set:
    doc: prepared cases of the training and validation split, with labels, as preprocess writes them
    type: Directory
  grid:
    doc: options of train, and the values that they may have
    type: File
    format: edam:format_3464  # JSON
  metric:
    doc: what trials are chosen by, the highest is the best
    type: string?
  memory_mib:
    doc: memory of the job of each trial, MiB
    type: int
    default: 3072
  threads_per_trial:
    doc: compute threads of each trial; equal numbers give equal weights
    type: int?
outputs:
  search_result:
    doc: the table (JSON and CSV), and what each trial has left
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
    out: [result, best_model, run_report]
