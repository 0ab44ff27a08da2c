#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Measure model candidates where they will run, and accept or refuse them
doc: |
  Bind it to the place of segment. A candidate is accepted only if it is faster or smaller there and stays within the tolerance
  on the validation split; the test split is reported and decides nothing.
$namespaces: {edam: "http://edamontology.org/"}
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 14400}  # s
baseCommand: [medweave-step, gate]
arguments:
  - {prefix: --output, valueFrom: accepted_model}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  exported_model:
    doc: the float32 model, which is accepted when no candidate is
    type: Directory
    inputBinding: {prefix: --exported-model}
  candidates:
    doc: model folders derived from it
    type: Directory[]
    inputBinding: {prefix: --candidates}
  training_set:
    doc: prepared cases; the validation split decides
    type: Directory
    inputBinding: {prefix: --training-set}
  test_batches:
    doc: prepared test cases, only reported
    type: Directory[]?
    inputBinding: {prefix: --test-batches}
  dice_tolerance:
    doc: the 95 % interval of the paired Dice difference must lie above minus this
    type: float?
    inputBinding: {prefix: --dice-tolerance}
  sensitivity_tolerance:
    doc: lesion sensitivity may fall by this much (0 to 1)
    type: float?
    inputBinding: {prefix: --sensitivity-tolerance}
  false_positive_tolerance:
    doc: false positives per scan may rise by this much
    type: float?
    inputBinding: {prefix: --false-positive-tolerance}
  max_slowdown:
    doc: a candidate that is only smaller may take this many times float32's seconds
    type: float?
    inputBinding: {prefix: --max-slowdown}
outputs:
  accepted_model:
    doc: the model that segment opens; its card pins the precision
    type: Directory
    outputBinding: {glob: accepted_model}
  gate_decision:
    doc: what was measured and what was decided, per candidate
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: gate_decision.json}
  run_report:
    doc: what the step did, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
