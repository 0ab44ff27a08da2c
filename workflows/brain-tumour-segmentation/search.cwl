#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Search for the best options of a brain tumour segmentation model, and judge it on the held-out cases
doc: |
  DistMIS' search, a grid of trainings. Experiment parallel: each trial by one process, as many at once as the place of the role `search`
  has room for. Data parallel: each trial by `ranks_per_trial` processes, with strategy ddp in the grid, on as many nodes as the binding gives
  that role. Which of the two is the job's grid and the binding's; the steps are the same. The report has both, where it is given the
  reports of an earlier run.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
  StepInputExpressionRequirement: {}
inputs:
  cohort:
    doc: folder of an MSD data set of MR, dataset.json with imagesTr and labelsTr
    type: Directory
  grid:
    doc: options of train, and the values that they may have
    type: File
    format: edam:format_3464  # JSON
  ranks_per_trial:
    doc: processes of each trial over all its nodes, as the grid says; so many GPUs, and processors on each node, are what its job asks for
    type: int
    default: 1
  threads_per_trial:
    doc: compute threads of each trial, over all its ranks; equal numbers give equal weights
    type: int?
  memory_mib:
    doc: memory of the job of each trial, MiB
    type: int
    default: 3072
  metric:
    doc: what trials are chosen by, the highest is the best
    type: string?
  earlier_reports:
    doc: search_report of earlier runs, such as the other mode's, for the report's table
    type: File[]
    format: edam:format_3464  # JSON
    default: []
  on_error:
    doc: stop at bad cases after all findings were told, or skip these cases
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  spacing_mm:
    doc: voxel size the network works on, along Right, Anterior, Superior, mm
    type: float[]?
  merge_labels:
    doc: values of the masks that count as one label, and its name; the three parts of MSD Task01 become the whole tumour
    type: string[]
    default: ["1,2,3:whole tumour"]
  fractions:
    doc: shares of patients for training, validation and test, with sum 1
    type: float[]
    default: [0.7, 0.15, 0.15]
  split_seed:
    doc: seed of the draw of patients into splits
    type: int
    default: 0
  cases_per_batch:
    doc: most cases that one job segments
    type: int
    default: 8
outputs:
  search_result:
    doc: the table (JSON and CSV), and what each trial has left
    type: Directory
    outputSource: collect/result
  search_report:
    doc: what the search did, trial by trial with start and end
    type: File
    format: edam:format_3464  # JSON
    outputSource: collect/run_report
  exported_model:
    doc: model folder of the best trial, also a MONAI Bundle
    type: Directory
    outputSource: export/exported_model
  segmentations:
    doc: the test cases' masks (NIfTI) and lesion tables (CSV), one folder per batch
    type: Directory[]
    outputSource: segment/segmentations
  evaluation:
    doc: metrics per case and pooled, with 95 % intervals
    type: Directory
    outputSource: evaluate/evaluation
  evaluation_report:  # the step has the name `report`, and one document has one namespace
    doc: the report's deterministic part
    type: Directory
    outputSource: report/report
steps:
  check:
    run: ../tools/check.cwl
    in:
      cohort: cohort
      merge_labels: merge_labels
      on_error: on_error
    out: [cohort_index, run_report]
  preprocess:
    run: ../tools/preprocess.cwl
    in:
      cohort: cohort
      cohort_index: check/cohort_index
      purpose: {default: training}
      spacing_mm: spacing_mm
      fractions: fractions
      split_seed: split_seed
      cases_per_batch: cases_per_batch
    out: [training_set, inference_batches, run_report]
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
    hints:
      medweave:Gang: {}  # data parallel, a trial may have several nodes; the other parts of the search are one process each
    in:
      part: {default: trial}
      trial: plan/trials
      training_set: preprocess/training_set
      metric: metric
      slots: ranks_per_trial
      gpus: ranks_per_trial
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
  export:
    run: ../tools/export.cwl
    in:
      trained_model:
        source: collect/best_model
        valueFrom: $(self)  # of type Directory?: the tool has none in its other parts
    out: [exported_model, run_report]
  segment:
    run: ../tools/segment.cwl
    scatter: case_batch
    in:
      segmentation_model: export/exported_model
      case_batch: preprocess/inference_batches
    out: [segmentations, run_report]
  evaluate:
    run: ../tools/evaluate.cwl
    in:
      cohort: cohort
      cohort_index: check/cohort_index
      segmentations: segment/segmentations
      case_batches: preprocess/inference_batches
    out: [evaluation, run_report]
  report:
    run: ../tools/report.cwl
    in:
      title: {default: Brain tumour segmentation in MR}
      evaluation: evaluate/evaluation
      segmentations: segment/segmentations
      case_batches: preprocess/inference_batches
      run_reports:
        source:
          - earlier_reports
          - check/run_report
          - preprocess/run_report
          - collect/run_report
          - export/run_report
          - segment/run_report
          - evaluate/run_report
        linkMerge: merge_flattened
    out: [report, run_report]
