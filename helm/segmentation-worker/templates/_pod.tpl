{{- /* The worker's pods and the one of `helm test`: same image, same volumes, same guards; they differ in their command. */ -}}

{{- define "segmentationWorker.volumes" -}}
- name: scripts
  configMap:
    name: {{ include "segmentationWorker.scriptsName" . }}
    defaultMode: 0555
- name: workdir
  emptyDir:
    sizeLimit: {{ .Values.workdirSizeLimit }}
- name: models
{{- if or .Values.modelCache.create .Values.modelCache.existingClaim }}
  persistentVolumeClaim:
    claimName: {{ .Values.modelCache.existingClaim | default (include "segmentationWorker.claimName" .) }}
{{- else }}
  emptyDir:
    sizeLimit: {{ .Values.modelCache.sizeLimit }}
{{- end }}
- name: home
  emptyDir:
    sizeLimit: 1Gi
- name: tmp
  emptyDir:
    sizeLimit: 2Gi
- name: state
  emptyDir:
    sizeLimit: 1Mi
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* dict "root" $ "name" "segment"; the test must not wait for a GPU, which the workers have */ -}}
{{- define "segmentationWorker.resources" -}}
{{- $resources := deepCopy .root.Values.resources -}}
{{- if and .root.Values.gpus (eq .name "segment") -}}
{{- $limits := set (default dict $resources.limits) .root.Values.gpuResource .root.Values.gpus -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- /* dict "root" $ "name" "segment" "command" (list …) */ -}}
{{- define "segmentationWorker.container" -}}
name: {{ .name }}
image: {{ include "medweave.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: {{ toJson .command }}
workingDir: {{ .root.Values.workdir | quote }}
env:
  - {name: HOME, value: /home/medweave}
  - {name: USER, value: medweave}
  - {name: LOGNAME, value: medweave}
  - {name: TMPDIR, value: /tmp}
  - {name: PATH, value: "{{ dir .root.Values.python }}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
  - {name: POD_PYTHON, value: {{ .root.Values.python | quote }}}
  - {name: POD_REQUIRED_MODULES, value: {{ join " " .root.Values.requiredModules | quote }}}
resources:
  {{- include "segmentationWorker.resources" . | nindent 2 }}
securityContext:
  {{- include "medweave.containerSecurity" .root | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - {name: scripts, mountPath: /run/medweave-scripts, readOnly: true}
  - {name: workdir, mountPath: {{ .root.Values.workdir | quote }}}
  - {name: models, mountPath: {{ .root.Values.modelCache.path | quote }}}
  - {name: home, mountPath: /home/medweave}
  - {name: tmp, mountPath: /tmp}
  - {name: state, mountPath: /run/medweave}
  {{- with .root.Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- define "segmentationWorker.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "medweave.podSecurity" . | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
volumes:
  {{- include "segmentationWorker.volumes" . | nindent 2 }}
{{- end -}}

{{- define "segmentationWorker.scriptFiles" -}}
{{- range $path, $_ := .Files.Glob "files/*" }}
{{ base $path }}: |
  {{- $.Files.Get $path | trimSuffix "\n" | nindent 2 }}
{{- end }}
{{- end -}}
