{{- /* The run's pods and the one of `helm test`: same image, same volumes, same account; they differ in their command. */ -}}

{{- define "runner.volumes" -}}
- name: files
  configMap:
    name: {{ include "runner.filesName" . }}
    defaultMode: 0555
- name: definition
{{- with .Values.definition.existingClaim }}
  persistentVolumeClaim:
    claimName: {{ . }}
    readOnly: true
{{- else }}
  emptyDir:
    sizeLimit: 64Mi
{{- end }}
- name: work
{{- if or .Values.work.create .Values.work.existingClaim }}
  persistentVolumeClaim:
    claimName: {{ .Values.work.existingClaim | default (include "runner.claimName" .) }}
{{- else }}
  emptyDir:
    sizeLimit: {{ .Values.work.sizeLimit }}
{{- end }}
- name: home
  emptyDir:
    sizeLimit: 1Gi
- name: tmp
  emptyDir:
    sizeLimit: 2Gi
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* dict "root" $ "name" "run" "command" (list …) */ -}}
{{- define "runner.container" -}}
{{- $folder := printf "/work/%s" (.root.Values.work.folder | default (include "medweave.name" .root)) -}}
name: {{ .name }}
image: {{ include "medweave.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: {{ toJson .command }}
workingDir: /work
env:
  - {name: HOME, value: /home/medweave}
  - {name: USER, value: medweave}
  - {name: LOGNAME, value: medweave}
  - {name: TMPDIR, value: /tmp}
  - {name: PATH, value: "{{ dir .root.Values.python }}:/opt/medweave/tools:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
  - {name: POD_PYTHON, value: {{ .root.Values.python | quote }}}
  - {name: RUN_SCHEDULE, value: {{ printf "/definition/%s" .root.Values.definition.file | quote }}}
  - {name: RUN_FOLDER, value: {{ $folder | quote }}}
  {{- with .root.Values.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
resources:
  {{- toYaml .root.Values.resources | nindent 2 }}
securityContext:
  {{- include "medweave.containerSecurity" .root | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  - {name: files, mountPath: /run/medweave-files, readOnly: true}
  - name: definition
    mountPath: /definition
    {{- if .root.Values.definition.existingClaim }}
    readOnly: true
    {{- end }}
  - {name: work, mountPath: /work}
  - {name: home, mountPath: /home/medweave}
  - {name: tmp, mountPath: /tmp}
  {{- with .root.Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{- /* dict "root" $ "restart" "Never" "account" "name" "token" true */ -}}
{{- define "runner.pod" -}}
serviceAccountName: {{ .account }}
automountServiceAccountToken: {{ .token }}
enableServiceLinks: false
restartPolicy: {{ .restart }}
{{ with .root -}}
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
  {{- include "runner.volumes" . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The pods that drive, or could: they have the account's rights. */ -}}
{{- define "runner.drivingPod" -}}
{{ include "runner.pod" (dict "root" . "restart" "Never" "account" (include "runner.accountName" .) "token" (or (not (empty .Values.rights)) (ne .Values.serviceAccountName ""))) }}
{{- end -}}

{{- /* What a Job is, alone or of a CronJob. It is never started again by Kubernetes: what follows a failure is the driver's table. */ -}}
{{- define "runner.jobSpec" -}}
backoffLimit: 0
{{- with .Values.activeDeadlineSeconds }}
activeDeadlineSeconds: {{ . }}
{{- end }}
{{- with .Values.ttlSecondsAfterFinished }}
ttlSecondsAfterFinished: {{ . }}
{{- end }}
template:
  metadata:
    labels:
      {{- include "medweave.podLabels" (dict "root" . "part" "run") | nindent 6 }}
  spec:
    {{- include "runner.drivingPod" . | nindent 4 }}
    containers:
      - {{ include "runner.container" (dict "root" . "name" "run" "command" (list "/run/medweave-files/start-run.sh" "run")) | nindent 8 | trim }}
{{- end -}}
