#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Search for the best options of a training, all trials side by side in one job
doc: |
  Experiment parallelism by Ray Tune on one machine: as many trials at a time as there are slots, and with the scheduler `asha` no longer than
  they are among the best. `scatter.cwl` is the same search, a job for each trial. Inputs that are left out take the defaults of the verb.
$namespaces: {edam: "http://edamontology.org/"}
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
  slots:
    doc: trials at the same time
    type: int
    default: 1
  memory_mib:
    doc: memory of the job, MiB; about 3 GiB for each trial at the same time
    type: int
    default: 3072
  threads_per_trial:
    doc: compute threads of each trial; equal numbers give equal weights
    type: int?
  scheduler:
    doc: whether each trial is trained to its end (all), or those that others are better than are stopped (asha)
    type: {type: enum, symbols: [all, asha]}
    default: all
  grace_epochs:
    doc: epochs that asha gives each trial at least
    type: int?
  reduction_factor:
    doc: asha lets one of so many trials go on from a rung to the next
    type: int?
outputs:
  search_result:
    doc: the table (JSON and CSV), and what each trial has left
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
      slots: slots
      gpus: slots
      memory_mib: memory_mib
      threads_per_trial: threads_per_trial
      scheduler: scheduler
      grace_epochs: grace_epochs
      reduction_factor: reduction_factor
    out: [result, best_model, run_report]
