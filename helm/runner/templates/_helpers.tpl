{{- /* Every label, and what all pods have in common. This file is the same in every chart here. */ -}}

{{- /* What Services, policies and StreamFlow select by; it never changes during a release's life. */ -}}
{{- define "medweave.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- /* The pods of one part: dict "root" $ "part" "worker". */ -}}
{{- define "medweave.partSelector" -}}
{{ include "medweave.selector" .root }}
app.kubernetes.io/component: {{ .part }}
{{- end -}}

{{- /* No version here: a new chart version alone must not restart pods in the middle of a training. */ -}}
{{- define "medweave.podLabels" -}}
{{ include "medweave.partSelector" . }}
app.kubernetes.io/part-of: medweave
{{- with .root.Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "medweave.objectLabels" -}}
{{ include "medweave.podLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ include "medweave.chartLabel" .root }}
{{- end -}}

{{- define "medweave.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else if .tag -}}
{{- printf "%s:%s" .repository .tag -}}
{{- else -}}
{{- fail (printf "image: '%s' is not one certain image.\n  seen:     neither image.digest nor image.tag\n  expected: image.digest (sha256:…), or image.tag\n  do:       --set image.digest=sha256:…" .repository) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "medweave.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.user.uid }}
runAsGroup: {{ .Values.user.gid }}
fsGroup: {{ .Values.user.gid }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "medweave.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
runAsUser: {{ .Values.user.uid }}
runAsGroup: {{ .Values.user.gid }}
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* Ingress and egress between the pods of the release, and names. */ -}}
{{- define "medweave.networkPolicySpec" -}}
podSelector:
  matchLabels:
    {{- include "medweave.selector" . | nindent 4 }}
policyTypes: [Ingress, Egress]
ingress:
  - from:
      - podSelector:
          matchLabels:
            {{- include "medweave.selector" . | nindent 12 }}
  {{- with .Values.networkPolicy.direct }}
  - from:
      {{- toYaml . | nindent 6 }}
    ports:
      - {port: 47000, endPort: 47099, protocol: TCP}
  {{- end }}
egress:
  - to:
      - podSelector:
          matchLabels:
            {{- include "medweave.selector" . | nindent 12 }}
  {{- with .Values.networkPolicy.direct }}
  - to:
      {{- toYaml . | nindent 6 }}
    ports:
      - {port: 47000, endPort: 47099, protocol: TCP}
  {{- end }}
  - to:
      {{- toYaml .Values.networkPolicy.dns | nindent 6 }}
    ports:
      - {port: 53, protocol: UDP}
      - {port: 53, protocol: TCP}
{{- end -}}
