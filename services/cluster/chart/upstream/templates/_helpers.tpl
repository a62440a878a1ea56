{{- define "upstream.selector" -}}
app: vcluster
release: {{ .Release.Name | quote }}
{{- end -}}

{{- define "upstream.labels" -}}
{{ include "upstream.selector" . }}
chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
heritage: {{ .Release.Service | quote }}
app.kubernetes.io/part-of: kubebyon
{{- end -}}

{{/* upstream.image: (dict "root" $ "registry" r "repository" p "tag" t) */}}
{{- define "upstream.image" -}}
{{- $registry := .root.Values.controlPlane.advanced.defaultImageRegistry | default .registry | trimSuffix "/" -}}
{{- with $registry }}{{ . }}/{{ end }}{{ .repository }}:{{ .tag }}
{{- end -}}

{{/* upstream.service-ip is the first address of networking.serviceCIDR, which kube-apiserver gives to default/kubernetes. */}}
{{- define "upstream.service-ip" -}}
{{- $cidr := splitList "/" .Values.networking.serviceCIDR -}}
{{- $number := 0 -}}
{{- range splitList "." (index $cidr 0) -}}
{{- $number = add (mul $number 256) (int .) -}}
{{- end -}}
{{- $size := 1 -}}
{{- range until (sub 32 (index $cidr 1 | int) | int) -}}
{{- $size = mul $size 2 -}}
{{- end -}}
{{- $first := add1 (sub $number (mod $number $size)) -}}
{{- printf "%d.%d.%d.%d" (div $first 16777216) (mod (div $first 65536) 256) (mod (div $first 256) 256) (mod $first 256) -}}
{{- end -}}

{{/* upstream.server-names is the sorted JSON list of what the API server's certificate is for. */}}
{{- define "upstream.server-names" -}}
{{- $name := .Release.Name -}}
{{- $ns := .Release.Namespace -}}
{{- $names := list "localhost" "127.0.0.1" (include "upstream.service-ip" .) -}}
{{- $names = concat $names (list "kubernetes" "kubernetes.default" "kubernetes.default.svc" "kubernetes.default.svc.cluster.local") -}}
{{- $names = concat $names (list $name (printf "%s.%s" $name $ns) (printf "%s.%s.svc" $name $ns) (printf "%s.%s.svc.cluster.local" $name $ns)) -}}
{{- $names = concat $names .Values.controlPlane.proxy.extraSANs -}}
{{- with .Values.controlPlane.endpoint -}}
{{- $names = append $names (regexReplaceAll ":[0-9]+$" . "") -}}
{{- end -}}
{{- $names | uniq | sortAlpha | toJson -}}
{{- end -}}

{{- define "upstream.exported-server" -}}
{{- if .Values.exportKubeConfig.server -}}
{{ .Values.exportKubeConfig.server }}
{{- else if .Values.controlPlane.endpoint -}}
https://{{ .Values.controlPlane.endpoint }}
{{- else -}}
https://localhost:8443
{{- end -}}
{{- end -}}

{{/* upstream.kubeconfig: (dict "server" s "ca" pem "cert" pem "key" pem "user" u) */}}
{{- define "upstream.kubeconfig" -}}
apiVersion: v1
kind: Config
clusters:
- name: kubernetes
  cluster:
    server: {{ .server | quote }}
    certificate-authority-data: {{ b64enc .ca }}
users:
- name: {{ .user | quote }}
  user:
    client-certificate-data: {{ b64enc .cert }}
    client-key-data: {{ b64enc .key }}
contexts:
- name: default
  context:
    cluster: kubernetes
    user: {{ .user | quote }}
current-context: default
{{ end -}}

{{/* upstream.pki is the JSON map of the Secret <release>-pki: what the release has already, plus what is missing.
     A certificate says CN only (the template engine cannot write O=), so each user is bound by name in the tenant.
     The server's certificate is made again, with the same CA, when the names it is for have changed. */}}
{{- define "upstream.pki" -}}
{{- $names := include "upstream.server-names" . -}}
{{- $secret := lookup "v1" "Secret" .Release.Namespace (printf "%s-pki" .Release.Name) -}}
{{- $pki := dict -}}
{{- range $key, $value := (get ($secret | default dict) "data" | default dict) -}}
{{- $_ := set $pki $key (b64dec $value) -}}
{{- end -}}
{{- $oldNames := dig "metadata" "annotations" "kubebyon.io/server-names" "" ($secret | default dict) -}}
{{- $days := 3650 -}}
{{- range $ca := list "ca" "front-proxy-ca" -}}
{{- if not (hasKey $pki (printf "%s.key" $ca)) -}}
{{- $made := genCAWithKey (ternary "kubernetes" $ca (eq $ca "ca")) $days (genPrivateKey "ecdsa") -}}
{{- $_ := set $pki (printf "%s.crt" $ca) $made.Cert -}}
{{- $_ := set $pki (printf "%s.key" $ca) $made.Key -}}
{{- end -}}
{{- end -}}
{{- $leaves := list
      (list "apiserver" "kube-apiserver" "ca")
      (list "apiserver-kubelet-client" "kube-apiserver-kubelet-client" "ca")
      (list "controller-manager" "system:kube-controller-manager" "ca")
      (list "scheduler" "system:kube-scheduler" "ca")
      (list "admin" "kubernetes-admin" "ca")
      (list "front-proxy-client" "front-proxy-client" "front-proxy-ca") -}}
{{- range $leaf := $leaves -}}
{{- $file := index $leaf 0 -}}
{{- if or (not (hasKey $pki (printf "%s.key" $file))) (and (eq $file "apiserver") (ne $names $oldNames)) -}}
{{- $ips := list -}}
{{- $dns := list -}}
{{- if eq $file "apiserver" -}}
{{- range $n := fromJsonArray $names -}}
{{- if or (regexMatch "^[0-9]+(\\.[0-9]+){3}$" $n) (contains ":" $n) -}}
{{- $ips = append $ips $n -}}
{{- else -}}
{{- $dns = append $dns $n -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $by := index $leaf 2 -}}
{{- $ca := buildCustomCert (get $pki (printf "%s.crt" $by) | b64enc) (get $pki (printf "%s.key" $by) | b64enc) -}}
{{- $made := genSignedCertWithKey (index $leaf 1) $ips $dns $days $ca (genPrivateKey "ecdsa") -}}
{{- $_ := set $pki (printf "%s.crt" $file) $made.Cert -}}
{{- $_ := set $pki (printf "%s.key" $file) $made.Key -}}
{{- end -}}
{{- end -}}
{{- if not (hasKey $pki "sa.key") -}}
{{- $_ := set $pki "sa.key" (genPrivateKey "ecdsa") -}}
{{- end -}}
{{- if not (hasKey $pki "bootstrap-token") -}}
{{- $_ := set $pki "bootstrap-token" (randAlphaNum 64) -}}
{{- end -}}
{{- $_ := set $pki "tokens.csv" (printf "%s,kubebyon-setup,kubebyon-setup,\"system:masters\"\n" (get $pki "bootstrap-token")) -}}
{{- range $who := list (list "controller-manager" "system:kube-controller-manager") (list "scheduler" "system:kube-scheduler") -}}
{{- $file := index $who 0 -}}
{{- $conf := include "upstream.kubeconfig" (dict "server" "https://127.0.0.1:8443" "ca" (get $pki "ca.crt") "cert" (get $pki (printf "%s.crt" $file)) "key" (get $pki (printf "%s.key" $file)) "user" (index $who 1)) -}}
{{- $_ := set $pki (printf "%s.conf" $file) $conf -}}
{{- end -}}
{{- $pki | toJson -}}
{{- end -}}

{{/* upstream.security is every container's; capabilities are added by the caller with "add". */}}
{{- define "upstream.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
  {{- with .add }}
  add: {{ toJson . }}
  {{- end }}
{{- end -}}
