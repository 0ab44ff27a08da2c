{{- /* The pods of master, worker and test: same image, same volumes, same guards; they differ in their command. */ -}}

{{- /* On master and workers; not on the pod of `helm test`, which no Service and no budget should count. */ -}}
{{- define "compssCluster.peerLabel" -}}
medweave/peer: "yes"
{{- end -}}

{{- define "compssCluster.environment" -}}
- {name: HOME, value: /home/medweave}
- {name: USER, value: medweave}
- {name: LOGNAME, value: medweave}
- {name: TMPDIR, value: /tmp}
- name: PATH
  value: {{ if eq .Values.engine "compss" }}/run/medweave-scripts/bin:{{ .Values.compss.home }}/Runtime/scripts/user:{{ end }}{{ dir .Values.python }}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
- {name: POD_ENGINE, value: {{ .Values.engine | quote }}}
- {name: POD_PYTHON, value: {{ .Values.python | quote }}}
- {name: POD_REQUIRED_MODULES, value: {{ join " " .Values.requiredModules | quote }}}
{{- if eq .Values.engine "compss" }}
- {name: COMPSS_HOME, value: {{ .Values.compss.home | quote }}}
- {name: POD_SSH_PORT, value: {{ .Values.compss.sshPort | quote }}}
{{- end }}
{{- end -}}

{{- /* dict "root" $ "part" "worker": what this part needs of the release's key pair, and no more. */ -}}
{{- define "compssCluster.keyItems" -}}
{{- if eq .part "worker" -}}
- {key: host-key, path: host-key}
- {key: authorized-keys, path: authorized-keys}
{{- else -}}
- {key: client-key, path: client-key}
- {key: known-hosts, path: known-hosts}
{{- end -}}
{{- end -}}

{{- define "compssCluster.volumes" -}}
- name: scripts
  configMap:
    name: {{ include "compssCluster.scriptsName" .root }}
    defaultMode: 0555
    items:
      {{- range $path, $_ := .root.Files.Glob "files/*" }}
      - {key: {{ base $path }}, path: {{ if eq (base $path) "ssh" }}bin/{{ end }}{{ base $path }}}
      {{- end }}
      {{- range list "passwd" "group" "peers" }}
      - {key: {{ . }}, path: {{ . }}, mode: 0444}
      {{- end }}
{{- if eq .root.Values.engine "compss" }}
- name: keys
  secret:
    secretName: {{ include "compssCluster.keysName" .root }}
    defaultMode: 0440
    items:
      {{- include "compssCluster.keyItems" . | nindent 6 }}
{{- end }}
- name: workdir
{{- if and (ne .part "test") (or .root.Values.sharedVolume.create .root.Values.sharedVolume.existingClaim) }}
  persistentVolumeClaim:
    claimName: {{ .root.Values.sharedVolume.existingClaim | default (include "compssCluster.claimName" .root) }}
{{- else }}
  emptyDir:
    sizeLimit: {{ .root.Values.workdirSizeLimit }}
{{- end }}
- name: shared-memory
  emptyDir:
    medium: Memory
    sizeLimit: {{ .root.Values.sharedMemory }}
- name: home
  emptyDir:
    sizeLimit: 1Gi
- name: tmp
  emptyDir:
    sizeLimit: 2Gi
- name: state
  emptyDir:
    sizeLimit: 1Mi
{{- with .root.Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "compssCluster.mounts" -}}
- {name: scripts, mountPath: /run/medweave-scripts, readOnly: true}
- {name: scripts, mountPath: /etc/passwd, subPath: passwd, readOnly: true}
- {name: scripts, mountPath: /etc/group, subPath: group, readOnly: true}
{{- if eq .Values.engine "compss" }}
- {name: keys, mountPath: /run/medweave-keys, readOnly: true}
{{- end }}
- {name: workdir, mountPath: {{ .Values.workdir | quote }}}
- {name: shared-memory, mountPath: /dev/shm}
- {name: home, mountPath: /home/medweave}
- {name: tmp, mountPath: /tmp}
- {name: state, mountPath: /run/medweave}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* dict "root" $ "part" "worker" "resources" (…) "command" (list …) */ -}}
{{- define "compssCluster.container" -}}
name: {{ .part }}
image: {{ include "medweave.image" .root | quote }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
command: {{ toJson .command }}
workingDir: {{ .root.Values.workdir | quote }}
env:
  {{- include "compssCluster.environment" .root | nindent 2 }}
resources:
  {{- toYaml .resources | nindent 2 }}
securityContext:
  {{- include "medweave.containerSecurity" .root | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
  {{- include "compssCluster.mounts" .root | nindent 2 }}
{{- end -}}

{{- /* dict "root" $ "part" "worker" "nodeSelector" (…) "tolerations" (…): the pod without its containers. */ -}}
{{- define "compssCluster.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- include "medweave.podSecurity" .root | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds }}
volumes:
  {{- include "compssCluster.volumes" . | nindent 2 }}
{{- end -}}

{{- define "compssCluster.readiness" -}}
readinessProbe:
  exec:
    command: [/run/medweave-scripts/ready.sh, {{ .part }}]
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end -}}

{{- /*
The scripts, and who the pod's user is: sshd wants its user in /etc/passwd, whatever image the site took.
A change here restarts the pods (the checksum in their annotations).
*/ -}}
{{- define "compssCluster.scriptFiles" -}}
passwd: |
  root:x:0:0:root:/root:/usr/sbin/nologin
  medweave:x:{{ .Values.user.uid }}:{{ .Values.user.gid }}:medweave:/home/medweave:/bin/bash
group: |
  root:x:0:
  medweave:x:{{ .Values.user.gid }}:
{{- range $path, $_ := .Files.Glob "files/*" }}
{{ base $path }}: |
  {{- $.Files.Get $path | trimSuffix "\n" | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "compssCluster.annotations" -}}
medweave/scripts: {{ include "compssCluster.scriptFiles" . | sha256sum | trunc 16 | quote }}
{{- end -}}

{{- /* A GPU is requested by its limit alone; Kubernetes takes the same number as the request. */ -}}
{{- define "compssCluster.workerResources" -}}
{{- $resources := deepCopy .Values.worker.resources -}}
{{- if .Values.worker.gpus -}}
{{- $limits := set (default dict $resources.limits) .Values.worker.gpuResource .Values.worker.gpus -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
