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

{{- define "runner.filesName" -}}
{{ include "medweave.partName" (dict "root" . "part" "files") }}
{{- end -}}

{{- define "runner.claimName" -}}
{{ include "medweave.partName" (dict "root" . "part" "work") }}
{{- end -}}

{{- /* The account of the run's pods: the chart's own where it has rights, else one that is there already, else the namespace's. */ -}}
{{- define "runner.accountName" -}}
{{- if .Values.rights -}}
{{- if .Values.serviceAccountName -}}
{{- fail (printf "rights: two accounts for one pod.\n  seen:     rights, and serviceAccountName: %s\n  expected: rights for an account of the chart's own, or the name of one that has them already\n  do:       take one away" .Values.serviceAccountName) -}}
{{- end -}}
{{ include "medweave.name" . }}
{{- else -}}
{{ .Values.serviceAccountName | default "default" }}
{{- end -}}
{{- end -}}

{{- /* A Job cannot be changed: each revision of the release has one of its own. */ -}}
{{- define "runner.jobName" -}}
{{ include "medweave.partName" (dict "root" . "part" (printf "%d" .Release.Revision)) }}
{{- end -}}

{{- define "runner.receiverName" -}}
{{ include "medweave.partName" (dict "root" . "part" "receive") }}
{{- end -}}

{{- define "runner.testName" -}}
{{ include "medweave.partName" (dict "root" . "part" "test") }}
{{- end -}}
