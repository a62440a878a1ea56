package tenantaccess

import rbacv1 "k8s.io/api/rbac/v1"

const viewerRole = "kubebyon:viewer"

// viewerRules are by name: not Kubernetes' own role view, which is whatever anybody in the tenant adds to it by a label, Secrets
// too. Secrets are not among them, nor anything that acts by being read, such as a proxy.
var viewerRules = []rbacv1.PolicyRule{
	read("", "bindings", "configmaps", "endpoints", "events", "limitranges", "namespaces", "namespaces/status", "nodes", "nodes/status",
		"persistentvolumeclaims", "persistentvolumeclaims/status", "persistentvolumes", "persistentvolumes/status", "pods", "pods/log",
		"pods/status", "podtemplates", "replicationcontrollers", "replicationcontrollers/scale", "replicationcontrollers/status",
		"resourcequotas", "resourcequotas/status", "serviceaccounts", "services", "services/status", "componentstatuses"),
	read("admissionregistration.k8s.io", "mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "mutatingwebhookconfigurations",
		"validatingadmissionpolicies", "validatingadmissionpolicybindings", "validatingwebhookconfigurations"),
	read("apiextensions.k8s.io", "customresourcedefinitions"),
	read("apiregistration.k8s.io", "apiservices"),
	read("apps", "controllerrevisions", "daemonsets", "daemonsets/status", "deployments", "deployments/scale", "deployments/status",
		"replicasets", "replicasets/scale", "replicasets/status", "statefulsets", "statefulsets/scale", "statefulsets/status"),
	read("autoscaling", "horizontalpodautoscalers", "horizontalpodautoscalers/status"),
	read("batch", "cronjobs", "cronjobs/status", "jobs", "jobs/status"),
	read("certificates.k8s.io", "certificatesigningrequests"),
	read("coordination.k8s.io", "leases"),
	read("discovery.k8s.io", "endpointslices"),
	read("events.k8s.io", "events"),
	read("flowcontrol.apiserver.k8s.io", "flowschemas", "prioritylevelconfigurations"),
	read("gateway.networking.k8s.io", "gatewayclasses", "gateways", "grpcroutes", "httproutes", "referencegrants", "tlsroutes"),
	read("metrics.k8s.io", "nodes", "pods"),
	read("networking.k8s.io", "ingressclasses", "ingresses", "ingresses/status", "ipaddresses", "networkpolicies", "servicecidrs"),
	read("node.k8s.io", "runtimeclasses"),
	read("policy", "poddisruptionbudgets", "poddisruptionbudgets/status"),
	read("rbac.authorization.k8s.io", "clusterrolebindings", "clusterroles", "rolebindings", "roles"),
	read("resource.k8s.io", "deviceclasses", "resourceclaims", "resourceclaimtemplates", "resourceslices"),
	read("scheduling.k8s.io", "priorityclasses"),
	read("storage.k8s.io", "csidrivers", "csinodes", "csistoragecapacities", "storageclasses", "volumeattachments", "volumeattributesclasses"),
}

func read(group string, resources ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: []string{"get", "list", "watch"}}
}
