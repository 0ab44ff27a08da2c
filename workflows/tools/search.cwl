#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Train every trial of a grid of options, or one of them, or put trials into one table
doc: |
  A trial is a training with options, which shares nothing with the others; its seed comes from its options. `all` trains them side by
  side in one job. `plan` writes a file per trial, `trial` trains one of these, `collect` makes one table: the same search as jobs
  of the workflow engine. A trial that fails is a row of the table. Options that are left out take the defaults of the verb.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ResourceRequirement: {coresMin: $(inputs.slots), ramMin: $(inputs.memory_mib)}  # MiB
  ToolTimeLimit: {timelimit: 172800}  # s
hints:
  # Read by medweave's connectors, ignored by every other runner.
  medweave:GPURequest: {gpusMin: 0, gpusTotal: $(inputs.gpus)}
  medweave:Partial: {}  # where a trial's whole job is lost, the others go on: its row says so
baseCommand: [medweave-step, search]
arguments:
  - {prefix: --output, valueFrom: search}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  part:
    doc: what to do (all, plan, trial, collect)
    type: {type: enum, symbols: [all, plan, trial, collect]}
    default: all
    inputBinding: {prefix: --part}
  grid:
    doc: options of train, and the values that they may have; of all, plan and collect
    type: File?
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --grid}
  trial:
    doc: one trial, as plan writes it; of trial
    type: File?
    format: edam:format_3464  # JSON
    inputBinding: {prefix: --trial}
  training_set:
    doc: prepared cases of the training and validation split, with labels; of all and trial
    type: Directory?
    inputBinding: {prefix: --training-set}
  results:
    doc: what single trials have written; of collect
    type: Directory[]?
    inputBinding: {prefix: --results}
  metric:
    doc: what trials are chosen by, the highest is the best; a metric of the training's report
    type: string?
    inputBinding: {prefix: --metric}
  slots:
    doc: trials at the same time, of all
    type: int
    default: 1
    inputBinding: {prefix: --slots}
  gpus:
    doc: GPUs that the job can use, one for each trial at the same time
    type: int
    default: 1
  memory_mib:
    doc: memory of the job, MiB; about 3 GiB for each trial at the same time
    type: int
    default: 3072
  threads_per_trial:
    doc: compute threads of each trial; equal numbers give equal weights
    type: int?
    inputBinding: {prefix: --threads-per-trial}
  scheduler:
    doc: of all, whether each trial is trained to its end (all), or those that others are better than are stopped (asha)
    type: {type: enum, symbols: [all, asha]}
    default: all
    inputBinding: {prefix: --scheduler}
  grace_epochs:
    doc: epochs that asha gives each trial at least
    type: int?
    inputBinding: {prefix: --grace-epochs}
  reduction_factor:
    doc: asha lets one of so many trials go on from a rung to the next
    type: int?
    inputBinding: {prefix: --reduction-factor}
outputs:
  trials:
    doc: a file for each trial of the grid, of plan
    type: File[]
    format: edam:format_3464  # JSON
    outputBinding: {glob: search/trial-*.json}
  result:
    doc: the table (JSON and CSV), and what each trial has left
    type: Directory
    outputBinding: {glob: search}
  best_model:
    doc: model folder of the best trial, of all and collect
    type: Directory?
    outputBinding: {glob: best_model}
  run_report:
    doc: what the step did, trial by trial with start and end, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
