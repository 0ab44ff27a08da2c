"""A repository with one small file of each kind that `medweave validate` knows, all right; and other values at their paths."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from medweave_core.documents.line_numbers import FieldPath

TOOL, WORKFLOW, ROLES = "workflows/tools/measure.cwl", "workflows/scan/measure.cwl", "workflows/scan/roles.yml"
JOB = "workflows/scan/jobs/demo-measure.yml"
SITE, SCHEDULE, BOUND = "deployments/sites/small.yml", "deployments/schedules/nightly.yml", "streamflow.yml"
FILES: Mapping[str, str] = {
    TOOL: """\
cwlVersion: v1.2
class: CommandLineTool
$namespaces: {edam: "http://edamontology.org/", medweave: "https://medweave.dev/cwl#"}
requirements:
  ResourceRequirement: {coresMin: 1, ramMin: 512}
  InitialWorkDirRequirement: {listing: [{entryname: words.txt, entry: $(inputs.words.kind)}]}
hints: [{class: "medweave:GPURequest", gpusMin: 0, gpusMax: 0}]
baseCommand: [measure]
arguments: [{prefix: --threads, valueFrom: $(runtime.cores)}]
inputs:
  scan: {doc: a scan, type: File, format: edam:format_4001, inputBinding: {prefix: --scan}}
  words:
    type: {type: record, fields: {kind: {type: {type: enum, symbols: [ct, mr]}}, sizes: {type: {type: array, items: int}}}}
  limit: {type: ["null", float], default: 1.5, inputBinding: {prefix: --limit}}
outputs:
  result: {type: File, format: edam:format_3464, outputBinding: {glob: result.json}}
""",
    WORKFLOW: """\
cwlVersion: v1.2
class: Workflow
requirements:
  ScatterFeatureRequirement: {}
  MultipleInputFeatureRequirement: {}
  StepInputExpressionRequirement: {}
inputs:
  scans: File[]
  words: {type: {type: record, fields: [{name: kind, type: string}]}}
  again: {type: "boolean?", default: false}
  atlas: Directory?
outputs:
  - {id: results, type: "File[]", outputSource: measure/result}
  - {id: last, type: ["null", File], outputSource: [once/result], pickValue: the_only_non_null, linkMerge: merge_flattened}
steps:
  measure:
    run: ../tools/measure.cwl
    scatter: [scan]
    scatterMethod: dotproduct
    in: {scan: scans, words: {source: words, valueFrom: "$({kind: 'ct'})"}, limit: {default: 2.0}}
    out: [result]
  once:
    run:
      class: CommandLineTool
      baseCommand: once
      inputs: {scan: {type: "File[]?"}, again: "boolean?", atlas: "Directory?"}
      outputs: {result: {type: File, outputBinding: {glob: a.json}}}
    when: $(inputs.again)
    in: [{id: scan, source: [measure/result], linkMerge: merge_flattened}, {id: again, source: again}, {id: atlas, source: [atlas]}]
    out: [{id: result}]
""",
    ROLES: """\
measure.cwl: {/measure: segment, /once: report}
holds:
  inputs: {scans: identified, atlas: identified}
  outputs: {segment: {result: as-read}, report: aggregate}
""",
    JOB: """\
scans: [{class: File, path: scan.nii.gz}, {class: File, location: scan.nii.gz, secondaryFiles: [{class: File, path: scan.nii.gz}]}]
words: {kind: ct}
again: true
atlas: {class: Directory, path: atlas}
""",
    "workflows/scan/jobs/scan.nii.gz": "no scan\n",
    SITE: """\
title: small
deployments:
  here:
    type: medweave.local
    config: {}
  login:
    type: medweave.ssh
    config: {nodes: [login.example], username: "${USER}", environment: {modules: [python]}}
  cluster:
    type: medweave.slurm
    wraps: login
    workdir: /scratch
    config:
      services: {cpu: {partition: standard, time: "01:00:00"}}
      reactions: {OutOfMemory: {factor: 2.0, cap: 4096}}
  pods:
    type: medweave.helm
    wraps: {deployment: here}
    workdir: /work
    config: {chart: ../../helm/web, values: {image: {repository: x/web, tag: "1.0"}, resources: {limits: {cpu: "2", memory: 4Gi}}}}
roles:
  segment: {deployment: cluster, service: cpu, locations: 1}
  report: {deployment: here}
mayHold:
  here: [identified, de-identified, derived, model, aggregate]
  cluster: [identified, de-identified, derived, model, aggregate]
inputs:
  atlas: {deployment: cluster, service: cpu, workdir: /atlases, holds: identified}
prices: {currency: EUR, deployments: {cluster: {coreHour: 0.02, gpuHour: 1}}}
transfers: {}
""",
    BOUND: """\
version: v1.0
workflows:
  small:
    type: cwl
    config: {file: workflows/scan/measure.cwl, settings: workflows/scan/jobs/demo-measure.yml}
    bindings:
      - {step: /, target: {deployment: here, locations: 1}}
      - {step: /measure, target: [{deployment: pods, service: web}], filters: [rules]}
      - {port: /atlas, target: {deployment: here, workdir: /atlases}}
deployments:
  here: {type: medweave.local, config: {}, scheduling_policy: first}
  pods: {type: medweave.helm, workdir: /work, config: {chart: helm/web, yamlValues: [helm/web/ci/on.yaml]}}
bindingFilters:
  rules: {type: medweave.filter, config: {mayHold: {here: [aggregate], pods: [aggregate]}, holds: {/measure: [aggregate]}}}
scheduling: {scheduler: {type: medweave.scheduler, config: {}}, policies: {first: {type: data_locality, config: {}}}}
dataManager: {type: medweave.transfer, config: {}}
database: {type: medweave.database, config: {}}
""",
    SCHEDULE: """\
name: nightly
file: ../../streamflow.yml
when: "0 2 * * *"
timeZone: Europe/Rome
watch: {folder: ~/incoming, quiet: 60}
notify: {at: failure, webhook: "${WEBHOOK}", mail: {server: mail.example, from: a@b.example, to: [c@d.example]}}
history: {succeeded: 1}
place: {systemd: {}}
""",
    "helm/web/Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\nappVersion: 1.0.0\n",
    "helm/web/values.yaml": "replicas: 1\nimage: {repository: x/web, tag: '1.0'}\nresources: {limits: {cpu: '1'}}\n",
    "helm/web/values.schema.json": json.dumps(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {
                "replicas": {"type": "integer"},
                "image": {"type": "object", "properties": {"tag": {"type": "string"}}, "required": ["tag"]},
            },
        }
    ),
    "helm/web/ci/on.yaml": "replicas: 2\nimage: {repository: x/web, tag: '1.0'}\n",
    "helm/web/templates/pod.yaml": "containers:\n  - name: web\n",
    "deployments/pod.yaml": """\
apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {containers: [{name: a, image: "busybox:1.36", env: [{name: PASSWORD, valueFrom: {secretKeyRef: {name: a, key: b}}}]}]}
""",
}
KINDS = (TOOL, WORKFLOW, ROLES, JOB, SITE, BOUND, SCHEDULE, "helm/web/Chart.yaml", "helm/web/values.yaml",
         "helm/web/values.schema.json", "helm/web/ci/on.yaml", "deployments/pod.yaml")  # fmt: skip
ODD: tuple[Any, ...] = ([], "x", 3, None)


def write_small_repository(folder: Path) -> None:
    """Write the files."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def with_odd_values(name: str) -> Iterator[tuple[str, str]]:
    """Yield the text of a file with one odd value at one of its paths, and a description of the change."""
    document = yaml.safe_load(FILES[name])
    for field in _fields(document, ()):
        for value in ODD:
            changed = _with(document, field, value)
            yield f"{name} {'.'.join(map(str, field))} {json.dumps(value)}", yaml.safe_dump(changed, sort_keys=False)


def _fields(value: Any, field: FieldPath) -> Iterator[FieldPath]:
    yield field
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from _fields(item, (*field, key))


def _with(document: Any, field: FieldPath, value: Any) -> Any:
    if not field:
        return value
    changed = copy.copy(document)
    changed[field[0]] = _with(document[field[0]], field[1:], value)
    return changed
