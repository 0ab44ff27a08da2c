#!/usr/bin/env cwl-runner
cwlVersion: v1.2
class: CommandLineTool
label: Compare compressed candidates and runtimes where segment or classify runs, and accept one
doc: |
  Bind it to the target of segment or classify. A candidate is accepted only if it is faster or smaller there and stays within the tolerances
  on the validation split. Each model is measured in every runtime that is installed there. The test split is reported but does not affect
  the decision.
$namespaces:
  edam: "http://edamontology.org/"
  medweave: "urn:medweave:cwl#"  # a web address would be asked for by StreamFlow, over 100 times, whenever a workflow is read
requirements:
  ResourceRequirement: {coresMin: 2, ramMin: 3072}  # MiB
  ToolTimeLimit: {timelimit: 14400}  # s
hints:
  # Read by medweave's connectors, ignored by every other runner; cwltool's own CUDARequirement would stop it where there is no GPU.
  medweave:GPURequest: {gpusMin: 0, gpusTotal: $(inputs.gpus)}
baseCommand: [medweave-step, gate]
arguments:
  - {prefix: --output, valueFrom: accepted_model}
  - {prefix: --num-threads, valueFrom: $(runtime.cores)}
inputs:
  exported_model:
    doc: float32 model; the reference, and the fallback if no candidate is accepted
    type: Directory
    inputBinding: {prefix: --exported-model}
  candidates:
    doc: candidate model folders (quantized models, exported pruned models, and quantized pruned models); without them only the runtime is chosen
    type: Directory[]?
    inputBinding: {prefix: --candidates}
  training_set:
    doc: preprocessed cases; the validation split decides
    type: Directory
    inputBinding: {prefix: --training-set}
  test_batches:
    doc: preprocessed test cases; reported only
    type: Directory[]?
    inputBinding: {prefix: --test-batches}
  dice_tolerance:
    doc: maximum loss of Dice; the 95 % interval of the paired difference must lie above minus this value
    type: float?
    inputBinding: {prefix: --dice-tolerance}
  sensitivity_tolerance:
    doc: maximum loss of lesion sensitivity (0 to 1)
    type: float?
    inputBinding: {prefix: --sensitivity-tolerance}
  false_positive_tolerance:
    doc: maximum increase of false positives per scan
    type: float?
    inputBinding: {prefix: --false-positive-tolerance}
  accuracy_tolerance:
    doc: of a classification, maximum loss of accuracy; the 95 % interval of the paired difference must lie above minus this value
    type: float?
    inputBinding: {prefix: --accuracy-tolerance}
  macro_f1_tolerance:
    doc: of a classification, maximum loss of macro-F1, judged like accuracy
    type: float?
    inputBinding: {prefix: --macro-f1-tolerance}
  macro_auc_tolerance:
    doc: of a classification, maximum loss of macro-AUC, judged like accuracy
    type: float?
    inputBinding: {prefix: --macro-auc-tolerance}
  max_slowdown:
    doc: maximum time relative to float32 for a candidate that is only smaller
    type: float?
    inputBinding: {prefix: --max-slowdown}
  fixed_choice:
    doc: candidate and runtime to accept if its metrics stay within the tolerances, whatever its speed, such as int8:openvino
    type: string?
    inputBinding: {prefix: --fixed-choice}
  gpus:
    doc: GPUs to request for the job, 0 or 1
    type: int
    default: 0
outputs:
  accepted_model:
    doc: model for segment or classify; its card fixes precision and runtime
    type: Directory
    outputBinding: {glob: accepted_model}
  gate_decision:
    doc: measurements and decision for each candidate
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: gate_decision.json}
  run_report:
    doc: run report of the step, without patient data
    type: File
    format: edam:format_3464  # JSON
    outputBinding: {glob: run_report.json}
