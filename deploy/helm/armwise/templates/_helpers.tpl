{{- define "armwise.fullname" -}}
{{- /* KubeRay refuses the names of longer RayServices */ -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 41 | trimSuffix "-" -}}
{{- end -}}

{{- define "armwise.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "armwise.labels" -}}
{{ include "armwise.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "armwise.image" -}}
{{- $own := default dict .group.image -}}
{{- /* the digest is that of one image: a group with another repository or tag has another */ -}}
{{- $base := ternary (omit .root.Values.image "digest") .root.Values.image (or (hasKey $own "repository") (hasKey $own "tag")) -}}
{{- $image := mustMerge $own $base -}}
{{- with $image.digest -}}
{{ $image.repository }}@{{ . }}
{{- else -}}
{{ $image.repository }}:{{ default .root.Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{- /* `args` of serve_config.yaml, with what the values say of them */ -}}
{{- define "armwise.args" -}}
{{- $file := .Files.Get "serve_config.yaml" | fromYaml -}}
{{- $args := (first $file.applications).args -}}
{{- $pg := .Values.postgresql -}}
{{- $host := required "postgresql.host: name the server of the log" $pg.host -}}
{{- $url := printf "postgresql://%s@%s:%v/%s?sslmode=%s" $pg.user $host $pg.port $pg.database $pg.sslmode -}}
{{- $service := printf "%s-serve-svc" (include "armwise.fullname" .) -}}
{{- $local := list $service (printf "%s.%s" $service .Release.Namespace) (printf "%s.%s.svc" $service .Release.Namespace) -}}
{{- $hosts := concat $local .Values.hosts -}}
{{- if .Values.ingress.enabled -}}
{{- range .Values.ingress.hosts -}}{{- $hosts = append $hosts .host -}}{{- end -}}
{{- end -}}
{{- $key := dict "env" "ARMWISE_API_KEY" "scopes" (list "admin") -}}
{{- if not .Values.home.existingClaim -}}
{{- /* the routers that a warm start trains are files below home, which every replica has to read */ -}}
{{- $args = omit $args "warm_start" -}}
{{- end -}}
{{- $args = mustMerge (dict "log_url" $url "hosts" (uniq $hosts) "keys" (list $key)) $args -}}
{{- range $name, $value := .Values.config -}}
{{- if kindIs "invalid" $value -}}{{- $args = omit $args $name -}}{{- else -}}{{- $_ := set $args $name $value -}}{{- end -}}
{{- end -}}
{{- toYaml $args -}}
{{- end -}}

{{- /* The names that `deployments` can have: those of agent/app.py. */ -}}
{{- define "armwise.deploymentNames" -}}
{{- $names := list "Ingress" "Learner" "Arms" -}}
{{- $hosted := list "embedded" "vllm" -}}
{{- if has (dig "engine" "embedded" (default dict .llm)) $hosted -}}{{- $names = append $names "Generator" -}}{{- end -}}
{{- range $name, $model := default dict .llms -}}
{{- if has (default "embedded" $model.engine) $hosted -}}{{- $names = append $names (printf "Generator-%s" $name) -}}{{- end -}}
{{- end -}}
{{- range $name, $_ := default dict .backbones -}}{{- $names = append $names (printf "Embedder-%s" $name) -}}{{- end -}}
{{- range $_, $arm := default dict .arms -}}{{- with $arm.host -}}{{- $names = append $names . -}}{{- end -}}{{- end -}}
{{- toJson (uniq $names) -}}
{{- end -}}

{{- define "armwise.serveConfig" -}}
{{- $file := .Files.Get "serve_config.yaml" | fromYaml -}}
{{- $app := omit (first $file.applications) "args" -}}
{{- $args := include "armwise.args" . | fromYaml -}}
{{- $names := include "armwise.deploymentNames" $args | fromJsonArray -}}
{{- range $name, $_ := .Values.deployments -}}
{{- /* the arms of a portfolio, which name hosts of their own, are in a file that is not here */ -}}
{{- if not (or $args.portfolio (has $name $names) (eq $name "Generator")) -}}
{{- fail (printf "deployments.%s: there is no such deployment; there are: %s" $name (join ", " $names)) -}}
{{- end -}}
{{- end -}}
{{- $deployments := list -}}
{{- /* the chart has options for a model in the cluster; one at an address has no deployment */ -}}
{{- $options := ternary .Values.deployments (omit .Values.deployments "Generator") (has "Generator" $names) -}}
{{- range $name, $options := $options -}}
{{- /* a number of replicas takes the place of the bounds that the chart has for it */ -}}
{{- $options = ternary (omit $options "autoscaling_config") $options (hasKey $options "num_replicas") -}}
{{- $deployments = append $deployments (merge (dict "name" $name) $options) -}}
{{- end -}}
{{- $app = merge (dict "args" $args "deployments" $deployments) $app -}}
{{- $http := dict "host" "0.0.0.0" "port" 8000 -}}
{{- toYaml (merge (dict "proxy_location" "EveryNode" "http_options" $http "applications" (list $app)) $file) -}}
{{- end -}}

{{- define "armwise.env" -}}
- name: ARMWISE_HOME
  value: /var/lib/armwise
- name: HF_HOME
  value: /models
- name: RAY_USAGE_STATS_ENABLED
  value: "0"
- name: ARMWISE_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ required "auth.existingSecret: name the secret of the first key" .Values.auth.existingSecret }}
      key: {{ .Values.auth.key }}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ required "postgresql.existingSecret: name the secret of the password" .Values.postgresql.existingSecret }}
      key: {{ .Values.postgresql.key }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "armwise.mounts" -}}
- {name: tmp, mountPath: /tmp}
- {name: home, mountPath: /var/lib/armwise}
- {name: models, mountPath: /models, readOnly: {{ .Values.models.readOnly }}}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "armwise.volume" -}}
{{- if .existingClaim -}}
persistentVolumeClaim: {claimName: {{ .existingClaim }}}
{{- else -}}
emptyDir: {sizeLimit: {{ .sizeLimit }}}
{{- end -}}
{{- end -}}

{{- /* The template of a pod: `root`, `group` (resources and placement), `node` (head or worker). */ -}}
{{- define "armwise.pod" -}}
{{- $values := .root.Values -}}
{{- $image := include "armwise.image" . -}}
{{- $prepare := list "armwise" "serve" "--prepare-only" "--config" "/etc/armwise/serve_config.yaml" -}}
metadata:
  labels:
    {{- include "armwise.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .node }}
    {{- with $values.podLabels }}{{ toYaml . | nindent 4 }}{{ end }}
  annotations:
    # what is built has to fit the configuration: another one is served by another cluster
    checksum/args: {{ include "armwise.args" .root | sha256sum }}
    {{- with $values.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  {{- with $values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  # the autoscaler, beside the head, asks Kubernetes for workers
  automountServiceAccountToken: {{ and (eq .node "head") $values.autoscaling.enabled }}
  securityContext: {{- toYaml $values.podSecurityContext | nindent 4 }}
  terminationGracePeriodSeconds: {{ $values.terminationGracePeriodSeconds }}
  {{- with .group.nodeSelector }}
  nodeSelector: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .group.tolerations }}
  tolerations: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .group.affinity }}
  affinity: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq .node "worker" }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "armwise.selector" .root | nindent 10 }}
          app.kubernetes.io/component: worker
  {{- end }}
  initContainers:
    - name: prepare
      image: {{ $image }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command: {{ toJson $prepare }}
      env: {{- include "armwise.env" .root | nindent 8 }}
      {{- with $values.extraEnvFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext: {{- toYaml $values.securityContext | nindent 8 }}
      resources:
        requests: {{- pick .group.resources.requests "cpu" "memory" | toYaml | nindent 10 }}
      volumeMounts:
        - {name: config, mountPath: /etc/armwise, readOnly: true}
        {{- include "armwise.mounts" .root | nindent 8 }}
  containers:
    - name: ray-{{ .node }}
      image: {{ $image }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      env: {{- include "armwise.env" .root | nindent 8 }}
      {{- with $values.extraEnvFrom }}
      envFrom: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext: {{- toYaml $values.securityContext | nindent 8 }}
      resources: {{- toYaml .group.resources | nindent 8 }}
      ports:
        {{- if eq .node "head" }}
        - {name: gcs-server, containerPort: 6379}
        - {name: dashboard, containerPort: 8265}
        {{- end }}
        - {name: serve, containerPort: 8000}
      livenessProbe:
        httpGet: {path: /api/healthz, port: 52365}
        {{- toYaml $values.probes.liveness | nindent 8 }}
      readinessProbe:
        {{- if eq .node "head" }}
        httpGet: {path: /api/healthz, port: 52365}
        {{- else }}
        httpGet: {path: {{ $values.probes.readiness.path }}, port: 8000}
        {{- end }}
        {{- omit $values.probes.readiness "path" | toYaml | nindent 8 }}
      volumeMounts: {{- include "armwise.mounts" .root | nindent 8 }}
  volumes:
    - name: tmp
      emptyDir: {}
    - name: home
      {{- include "armwise.volume" $values.home | nindent 6 }}
    - name: models
      {{- include "armwise.volume" $values.models | nindent 6 }}
    - name: config
      configMap: {name: {{ include "armwise.fullname" .root }}-config}
    {{- with $values.extraVolumes }}{{ toYaml . | nindent 4 }}{{ end }}
{{- end -}}
