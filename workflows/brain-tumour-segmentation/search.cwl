#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Search the hyperparameters of a brain tumor segmentation model, and evaluate the best model on the test split
doc: |
  The hyperparameter search of DistMIS, a grid of trainings. Experiment parallel means one process per trial, with as many concurrent trials
  as the target of the role `search` has room for. Data parallel means `ranks_per_trial` processes per trial, with strategy ddp in the grid, on as
  many nodes as the binding gives that role. The grid of the job and the binding select the mode; the steps are the same. The report shows both
  modes if it gets the reports of an earlier run.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
  StepInputExpressionRequirement: {}
inputs:
  cohort:
    doc: folder with brain MR and masks (MSD or nnU-Net data set, BIDS or BraTS folder, DICOM series with DICOM SEG or RTSTRUCT, or NIfTI)
    type: Directory
  label_file:
    doc: labels of the masks with their DICOM codes, as a JSON list of value, name, category, type, anatomy and laterality
    type: File?
    format: edam:format_3464  # JSON
  channels:
    doc: rules that group the DICOM series of a study into named channels, or the names of the NIfTI channels to read, as a JSON list; not needed for an MSD data set
    type: File?
    format: edam:format_3464  # JSON
  ignore_label:
    doc: mask value of voxels without annotation, which count in no loss and no metric
    type: int?
  grid:
    doc: options of train and the values to search, regions among them
    type: File
    format: edam:format_3464  # JSON
  ranks_per_trial:
    doc: number of ranks of each trial, over all nodes, equal to the ranks in the grid; its job requests as many GPUs, and as many CPUs on each node
    type: int
    default: 1
  threads_per_trial:
    doc: compute threads of each trial, over all its ranks; weights are reproducible only for equal numbers
    type: int?
  memory_mib:
    doc: memory of the job of each trial, MiB
    type: int
    default: 3072
  metric:
    doc: metric for model selection (higher is better)
    type: string?
  objectives:
    doc: what to optimize, NAME:max or NAME:min of score, seconds and wh; the first one selects the model (by default score:max)
    type: string[]?
  repeats:
    doc: trainings of each combination of options, with different seeds (by default 1)
    type: int?
  earlier_reports:
    doc: search_report of earlier runs, for example of the other mode, for the table of the report
    type: File[]
    format: edam:format_3464  # JSON
    default: []
  on_error:
    doc: invalid cases, stop after all errors are reported (stop) or skip these cases (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  spacing_mm:
    doc: voxel size of the network input along Right, Anterior, Superior, mm
    type: float[]?
  merge_labels:
    doc: mask values to merge into one label; the default merges the three labels of MSD Task01 into the whole tumor, and [] keeps the labels
    type: string[]
    default: ["1,2,3:whole tumour"]
  fractions:
    doc: fractions of patients for training, validation and test, with sum 1
    type: float[]
    default: [0.7, 0.15, 0.15]
  split_seed:
    doc: random seed of the assignment of patients to splits
    type: int
    default: 0
  cases_per_batch:
    doc: maximum number of cases that one job segments
    type: int
    default: 8
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
  exported_model:
    doc: model folder of the best trial, also a MONAI Bundle
    type: Directory
    outputSource: export/exported_model
  segmentations:
    doc: masks (NIfTI) and lesion tables (CSV) of the test cases, one folder per batch
    type: Directory[]
    outputSource: segment/segmentations
  evaluation:
    doc: metrics per case and pooled, with 95 % intervals
    type: Directory
    outputSource: evaluate/evaluation
  evaluation_report:  # the step has the name `report`, and one document has one namespace
    doc: reproducible part of the report
    type: Directory
    outputSource: report/report
steps:
  check:
    run: ../tools/check.cwl
    in:
      cohort: cohort
      label_file: label_file
      merge_labels: merge_labels
      ignore_label: ignore_label
      channels: channels
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
      repeats: repeats
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
