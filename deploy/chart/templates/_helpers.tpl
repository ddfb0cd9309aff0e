{{- /* An image, by its digest or its tag: (list $ .Values.images.NAME) */ -}}
{{- define "holdfast.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* Labels of an object: (list $ NAME) */ -}}
{{- define "holdfast.labels" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version }}
{{- end -}}

{{- /* Labels that select the pods of a Deployment: (list $ NAME) */ -}}
{{- define "holdfast.selector" -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
{{- end -}}

{{- define "holdfast.spread" -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "holdfast.selector" $ | nindent 6 }}
  matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end -}}

{{- define "holdfast.restricted" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /* The file of the injector's --settings. */ -}}
{{- define "holdfast.settings" -}}
{{- $upstream := .Values.controlPlane.upstream -}}
{{- $settings := .Values.inject.settings -}}
{{- if and (not $upstream) .Values.mesh.enabled -}}
{{- $upstream = list (printf "%s.%s.svc:15012" .Values.mesh.name .Release.Namespace) -}}
{{- /* No iptables rules send connections to the Envoy of an injected pod. */ -}}
{{- $settings = merge (deepCopy $settings) (dict "node-metadata" (list "INTERCEPTION_MODE=NONE")) -}}
{{- end -}}
{{- if not $upstream -}}
{{- fail "controlPlane.upstream is empty: name the control plane of injected pods, such as --set controlPlane.upstream={xds.example:443}, or set mesh.enabled" -}}
{{- end -}}
{{- $s := dict "upstream" $upstream "shape" .Values.inject.shape "prestop-sleep" .Values.inject.prestopSleep
    "image" (include "holdfast.image" (list . .Values.images.holdfast))
    "child-image" (include "holdfast.image" (list . .Values.images.withEnvoy))
    "envoy-image" (include "holdfast.image" (list . .Values.images.envoy)) -}}
{{- with .Values.controlPlane.tokenAudience }}{{ $_ := set $s "token-audience" . }}{{ end -}}
{{- with .Values.controlPlane.caConfigMap }}{{ $_ := set $s "ca-config-map" . }}{{ end -}}
{{- range $of := list "proxy" "agent" -}}
{{- range $key, $flag := dict "cpu" "cpu" "memory" "memory" "cpuLimit" "cpu-limit" "memoryLimit" "memory-limit" -}}
{{- with index $.Values.inject $of $key }}{{ $_ := set $s (printf "%s-%s" $of $flag) . }}{{ end -}}
{{- end -}}
{{- end -}}
{{- with $settings }}{{ $_ := set $s "settings" . }}{{ end -}}
{{- with .Values.inject.namespaces }}{{ $_ := set $s "namespaces" . }}{{ end -}}
{{ toYaml $s }}
{{- end -}}
