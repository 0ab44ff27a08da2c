#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: Workflow
label: Train a model that classifies images, and evaluate it on the test split
doc: |
  De-identifies a folder of images with a table of targets and trains a model. Writes the model that gate accepts for the machine type of
  classify, the calibrated probabilities of the test images, their evaluation against the table of targets, and a report. Omitted inputs have
  the defaults of the verbs.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
inputs:
  cohort:
    doc: folder with images (JPEG, PNG, or DICOM CR, DX, MG) and the table of their classes
    type: Directory
  identified:
    doc: the cohort contains patient identities; it is then de-identified first, and the later steps use the result
    type: boolean
    default: true
  pseudonym_key:
    doc: pseudonym key of an earlier run, for the same pseudonyms, dates and splits; by default each run creates a new key
    type: File?
    format: edam:format_2333  # binary
  targets:
    doc: table of targets (CSV) outside the cohort, only without identified, which renames images; by default the only such table of the cohort
    type: File?
    format: edam:format_3752  # CSV
  faces:
    doc: whether images show faces or other marks of a person, with identified; auto uses the cohort card, else the headers; absent after you looked at every photograph
    type: {type: enum, symbols: [auto, present, absent]}
    default: auto
  on_error:
    doc: invalid cases, stop after all errors are reported (stop) or skip these cases (skip)
    type: {type: enum, symbols: [stop, skip]}
    default: stop
  image_size:
    doc: columns and rows of the network input, pixels
    type: int[]?
  fractions:
    doc: fractions of patients for training, validation and test, with sum 1; splits fixed by the cohort do not change
    type: float[]?
  split_seed:
    doc: random seed of the assignment of patients to splits
    type: int
    default: 0
  cases_per_batch:
    doc: maximum number of images that one job classifies
    type: int
    default: 256
  training_network:
    doc: network, a name listed by `medweave-step train --help`, or module:Class of your own; by default mobilenet
    type: string?
  training_width:
    doc: width multiplier, the channels of every layer as a fraction of the full network's
    type: float?
  training_network_file:
    doc: YAML file of a layer stack, in place of a network's name
    type: File?
    format: edam:format_3750  # YAML
  training_network_code:
    doc: Python file with the class of network module:Class; needs allow_code
    type: File?
    format: edam:format_3996  # Python script
  allow_code:
    doc: run the code of network module:Class, which is not part of medweave
    type: boolean?
  training_initial_model:
    doc: model folder or MONAI Bundle whose weights the training begins with, where name and shape match
    type: Directory?
  training_initial_state_dict:
    doc: file of weights (.safetensors, .pt) that the training begins with, in place of training_initial_model
    type: File?
    format: edam:format_2333  # binary
  training_freeze:
    doc: with initial weights, parameters that are not trained, as patterns of their names such as "features.*"
    type: string[]?
  training_steps:
    doc: number of optimizer steps
    type: int?
  training_batch_size:
    doc: images per optimizer step
    type: int?
  training_learning_rate:
    doc: peak of the learning rate
    type: float?
  training_epoch_steps:
    doc: optimizer steps per epoch; the validation interval counts epochs
    type: int?
  training_validation_interval:
    doc: validation interval, in epochs
    type: int?
  training_sampling:
    doc: whether each class (balanced) or each case (natural) is drawn with equal probability; by default balanced
    type: string?
  training_class_weights:
    doc: weights of the classes in the loss (none, balanced); balanced needs training_sampling natural
    type: string?
  training_label_smoothing:
    doc: how far the truth of the loss is moved towards equal probabilities, 0 to less than 1
    type: float?
  training_flip_axes:
    doc: axes (I left to right, J top to bottom) along which augmentation mirrors images; by default none, because left and right differ in radiographs
    type: string[]?
  training_seed:
    doc: random seed of weight initialization, drawn images and augmentation
    type: int
    default: 0
  training_strategy:
    doc: distribution strategy of the training, a name listed by `medweave-step train --help`
    type: string
    default: single
  training_ranks:
    doc: number of ranks of a multi-process strategy, over all nodes
    type: int
    default: 1
  training_sync_interval:
    doc: optimizer steps of local-sgd between two synchronization points; by default one epoch
    type: int?
  training_threads:
    doc: compute threads of each rank; weights are reproducible only for equal numbers
    type: int?
  pruned:
    doc: prune the trained model too, so that gate can accept a smaller and faster network
    type: boolean
    default: false
  pruning_tolerance:
    doc: largest rise of the validation loss by pruning, as a fraction of the loss of the trained model
    type: float?
  pruning_budget_epochs:
    doc: number of epochs of pruning, of 50 steps each
    type: int
    default: 60
  gate_accuracy_tolerance:
    doc: maximum loss of accuracy of an int8 model; the 95 % interval of the paired difference must lie above minus this value
    type: float?
  gate_macro_f1_tolerance:
    doc: maximum loss of macro-F1 of an int8 model, judged like accuracy
    type: float?
  gate_macro_auc_tolerance:
    doc: maximum loss of macro-AUC of an int8 model, judged like accuracy
    type: float?
  gate_max_slowdown:
    doc: maximum time relative to float32 for an int8 model that is smaller but not faster
    type: float?
  gate_candidates:
    doc: |
      candidate and runtime to accept if its metrics stay within the tolerances, whatever its speed, such as int8:openvino or
      float32:openvino; by default gate decides by the speed that it measures, which differs between machines
    type: string?
  inference_gpus:
    doc: GPUs to request for each job of gate and classify, 0 or 1
    type: int
    default: 0
outputs:
  accepted_model:
    doc: model folder, also a MONAI Bundle; its card fixes the precision and the runtime that gate accepted
    type: Directory
    outputSource: gate/accepted_model
  gate_decision:
    doc: measurements and decision for each candidate
    type: File
    format: edam:format_3464  # JSON
    outputSource: gate/gate_decision
  training_log:
    doc: TensorBoard events, and the curves as JSON
    type: Directory
    outputSource: train/training_log
  classifications:
    doc: classes and calibrated probabilities of the test images (CSV, DICOM SR too for DICOM sources, if every class of the model has a code), one folder per batch
    type: Directory[]
    outputSource: classify/classifications
  evaluation:
    doc: metrics of all classes and of each class, with 95 % intervals
    type: Directory
    outputSource: evaluate/evaluation
  evaluation_report:  # the step has the name `report`, and one document has one namespace
    doc: reproducible part of the report
    type: Directory
    outputSource: report/report
  home:
    doc: re-identification map and a new key; identified data, keep it inside your institution
    type: Directory?
    outputSource: deidentify/home
steps:
  deidentify:
    run: ../tools/deidentify.cwl
    when: $(inputs.identified)
    in:
      identified: identified
      cohort: cohort
      pseudonym_key: pseudonym_key
      faces: faces
      on_error: on_error
    out: [deidentified_cohort, home, run_report]
  check:
    run: ../tools/check.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
      targets: targets
      on_error: on_error
    out: [cohort_index, run_report]
  preprocess:
    run: ../tools/preprocess.cwl
    in:
      cohort:
        source: [deidentify/deidentified_cohort, cohort]
        pickValue: first_non_null
      cohort_index: check/cohort_index
      purpose: {default: training}
      image_size: image_size
      fractions: fractions
      split_seed: split_seed
      cases_per_batch: cases_per_batch
    out: [training_set, inference_batches, run_report]
  train:
    run: ../tools/train.cwl
    in:
      training_set: preprocess/training_set
      task: {default: classification}
      network: training_network
      width: training_width
      network_file: training_network_file
      network_code: training_network_code
      allow_code: allow_code
      initial_model: training_initial_model
      initial_state_dict: training_initial_state_dict
      freeze: training_freeze
      training_steps: training_steps
      batch_size: training_batch_size
      learning_rate: training_learning_rate
      epoch_steps: training_epoch_steps
      validation_interval: training_validation_interval
      sampling: training_sampling
      class_weights: training_class_weights
      label_smoothing: training_label_smoothing
      flip_axes: training_flip_axes
      seed: training_seed
      strategy: training_strategy
      ranks: training_ranks
      sync_interval: training_sync_interval
      threads_per_rank: training_threads
    out: [trained_model, training_log, run_report]
  export:
    run: ../tools/export.cwl
    in:
      trained_model: train/trained_model
      allow_code: allow_code
    out: [exported_model, run_report]
  quantize:
    run: ../tools/quantize.cwl
    in:
      exported_model: export/exported_model
      training_set: preprocess/training_set
    out: [int8_candidate, run_report]
  prune:
    run: ../tools/prune.cwl
    when: $(inputs.pruned)
    in:
      pruned: pruned
      training_set: preprocess/training_set
      trained_model: train/trained_model
      tolerance: pruning_tolerance
      budget_epochs: pruning_budget_epochs
      removal_tolerance: {default: 0.3}
      epoch_steps: {default: 50}
      plateau_epochs: {default: 3}
      optimizer: {default: adam}
      learning_rate: {default: 0.002}
      allow_code: allow_code
    out: [pruned_model, run_report]
  export_pruned:
    run: ../tools/export.cwl
    when: $(inputs.pruned)
    in:
      pruned: pruned
      trained_model:
        source: [prune/pruned_model, train/trained_model]
        pickValue: first_non_null  # without `pruned`, neither step runs
      allow_code: allow_code
    out: [exported_model, run_report]
  quantize_pruned:
    run: ../tools/quantize.cwl
    when: $(inputs.pruned)
    in:
      pruned: pruned
      exported_model:
        source: [export_pruned/exported_model, export/exported_model]
        pickValue: first_non_null  # as in export_pruned
      training_set: preprocess/training_set
    out: [int8_candidate, run_report]
  gate:
    run: ../tools/gate.cwl
    in:
      exported_model: export/exported_model
      candidates:
        source: [quantize/int8_candidate, export_pruned/exported_model, quantize_pruned/int8_candidate]
        linkMerge: merge_flattened
        pickValue: all_non_null  # without `pruned`, its steps do not run
      training_set: preprocess/training_set
      test_batches: preprocess/inference_batches
      accuracy_tolerance: gate_accuracy_tolerance
      macro_f1_tolerance: gate_macro_f1_tolerance
      macro_auc_tolerance: gate_macro_auc_tolerance
      max_slowdown: gate_max_slowdown
      fixed_choice: gate_candidates
      gpus: inference_gpus
    out: [accepted_model, gate_decision, run_report]
  classify:
    run: ../tools/classify.cwl
    scatter: case_batch
    in:
      classification_model: gate/accepted_model
      case_batch: preprocess/inference_batches
      gpus: inference_gpus
    out: [classifications, run_report]
  evaluate:
    run: ../tools/evaluate.cwl
    in:
      cohort_index: check/cohort_index
      training_set: preprocess/training_set
      classifications: classify/classifications
      case_batches: preprocess/inference_batches
    out: [evaluation, run_report]
  report:
    run: ../tools/report.cwl
    in:
      evaluation: evaluate/evaluation
      classifications: classify/classifications
      case_batches: preprocess/inference_batches
      training_log: train/training_log
      run_reports:
        source:
          - deidentify/run_report
          - check/run_report
          - preprocess/run_report
          - train/run_report
          - export/run_report
          - quantize/run_report
          - prune/run_report
          - export_pruned/run_report
          - quantize_pruned/run_report
          - gate/run_report
          - classify/run_report
          - evaluate/run_report
        linkMerge: merge_flattened
        pickValue: all_non_null  # deidentify may not have run
    out: [report, run_report]
