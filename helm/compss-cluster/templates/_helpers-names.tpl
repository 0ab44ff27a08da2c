{{- /* Every name that an object, a pod or a host of this chart bears comes from this file. */ -}}

{{- /*
The release's name. A long one ends in a hash, so that what is made of it (pods, revisions) stays within 63 characters;
so does one with a dot, which no host name may hold.
*/ -}}
{{- define "medweave.name" -}}
{{- if not (regexMatch "^[a-z]" .Release.Name) -}}
{{- fail (printf "release name '%s': a Service cannot bear it.\n  seen:     it starts with a digit\n  expected: a lower-case letter first\n  do:       helm install a%s …" .Release.Name .Release.Name) -}}
{{- end -}}
{{- if or (gt (len .Release.Name) 40) (contains "." .Release.Name) -}}
{{- printf "%s-%s" (.Release.Name | replace "." "-" | trunc 31 | trimSuffix "-") (sha256sum .Release.Name | trunc 8) -}}
{{- else -}}
{{- .Release.Name -}}
{{- end -}}
{{- end -}}

{{- /* One part of the release: dict "root" $ "part" "worker". */ -}}
{{- define "medweave.partName" -}}
{{- printf "%s-%s" (include "medweave.name" .root) .part -}}
{{- end -}}

{{- define "medweave.chartLabel" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "compssCluster.masterName" -}}
{{ include "medweave.partName" (dict "root" . "part" "master") }}
{{- end -}}

{{- define "compssCluster.workerName" -}}
{{ include "medweave.partName" (dict "root" . "part" "worker") }}
{{- end -}}

{{- /* The headless Service; pods are called POD.SERVICE inside the namespace. */ -}}
{{- define "compssCluster.serviceName" -}}
{{ include "medweave.partName" (dict "root" . "part" "pods") }}
{{- end -}}

{{- define "compssCluster.scriptsName" -}}
{{ include "medweave.partName" (dict "root" . "part" "scripts") }}
{{- end -}}

{{- define "compssCluster.keysName" -}}
{{ include "medweave.partName" (dict "root" . "part" "keys") }}
{{- end -}}

{{- define "compssCluster.claimName" -}}
{{ include "medweave.partName" (dict "root" . "part" "shared") }}
{{- end -}}

{{- define "compssCluster.testName" -}}
{{ include "medweave.partName" (dict "root" . "part" "test") }}
{{- end -}}

{{- /* Host names of the workers, one a line. */ -}}
{{- define "compssCluster.peers" -}}
{{- range $index := until (int .Values.worker.replicas) }}
{{- if $index }}
{{ end }}
{{- include "compssCluster.workerName" $ }}-{{ $index }}.{{ include "compssCluster.serviceName" $ }}
{{- end }}
{{- end -}}
