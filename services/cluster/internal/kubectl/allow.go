package kubectl

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	maxPath  = 2 << 10
	maxQuery = 16 << 10
	// maxLog bounds one container's log, in bytes. More than that is not shown anyway.
	maxLog = 4 << 20
)

// question is what may be asked of a tenant's API, written anew from what was allowed of a request.
type question struct {
	method string
	path   string // decoded
	query  url.Values
	// waits says that it is a watch. It is not asked: to whoever waits nothing ever happens.
	waits bool
}

// coreResources are those of the API's first group that a run may read. Secrets are not among them, nor watch and proxy, which
// were spelled like resources once.
var coreResources = map[string]bool{
	"bindings": true, "componentstatuses": true, "configmaps": true, "endpoints": true, "events": true, "limitranges": true,
	"namespaces": true, "nodes": true, "persistentvolumeclaims": true, "persistentvolumes": true, "pods": true, "podtemplates": true,
	"replicationcontrollers": true, "resourcequotas": true, "serviceaccounts": true, "services": true,
}

// notResources are the names that no group's resource may have.
var notResources = map[string]bool{"secrets": true, "watch": true, "proxy": true}

// queries are the parameters that a GET may have. Those that would keep an answer open are not passed on.
var queries = map[string]bool{
	"limit": true, "continue": true, "labelSelector": true, "fieldSelector": true, "resourceVersion": true, "resourceVersionMatch": true,
	"includeObject": true, "timeout": true, "timeoutSeconds": true, "hash": true, "pretty": true,
	"watch": true, "follow": true,
}

// logQueries are those of a Pod's log besides.
var logQueries = map[string]bool{
	"container": true, "previous": true, "sinceSeconds": true, "sinceTime": true, "timestamps": true, "tailLines": true, "limitBytes": true,
	"stream": true,
}

// reviews are the only things that may be posted: each asks the API about the asker, and stores nothing.
var reviews = map[string]bool{
	"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": true,
	"/apis/authorization.k8s.io/v1/selfsubjectrulesreviews":  true,
	"/apis/authentication.k8s.io/v1/selfsubjectreviews":      true,
	"/apis/authentication.k8s.io/v1beta1/selfsubjectreviews": true,
}

// allow gives the question that a request asks, or why it is not asked. What is allowed has a name here; a resource of a group that
// is not Kubernetes' own has a shape, and the reader's role decides.
func allow(method string, u *url.URL) (question, string) {
	q := question{method: method, path: u.Path}
	if len(u.Path) > maxPath || len(u.RawQuery) > maxQuery || !utf8.ValidString(u.Path) {
		return q, "its address is too long or no text"
	}
	switch method {
	case http.MethodPost:
		if !reviews[u.Path] || u.RawQuery != "" {
			return q, "nothing is changed from here"
		}
		return q, ""
	case http.MethodGet:
	default:
		return q, "nothing is changed from here"
	}
	log, reason := readable(u.Path)
	if reason != "" {
		return q, reason
	}
	return ask(q, u.RawQuery, log)
}

func ask(q question, raw string, log bool) (question, string) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return q, "its parameters cannot be read"
	}
	for name, given := range values {
		switch {
		case !queries[name] && (!log || !logQueries[name]):
			return q, "it may not have the parameter " + strconv.Quote(name)
		case len(given) != 1:
			return q, "it has the parameter " + name + " more than once"
		}
	}
	if values.Has("follow") && !isFalse(values.Get("follow")) {
		return q, "a log is not followed here"
	}
	q.waits = values.Has("watch") && !isFalse(values.Get("watch"))
	values.Del("follow")
	values.Del("watch")
	if log {
		if n, err := strconv.ParseInt(values.Get("limitBytes"), 10, 64); err != nil || n <= 0 || n > maxLog {
			values.Set("limitBytes", strconv.Itoa(maxLog))
		}
	}
	q.query = values
	return q, ""
}

// isFalse is as the API reads it: everything else is true.
func isFalse(value string) bool { return value == "0" || strings.EqualFold(value, "false") }

// readable says whether a path may be read, and whether it is a Pod's log.
func readable(path string) (log bool, reason string) {
	const elsewhere = "it is none of the API's addresses that are read from here"
	rest, ok := strings.CutPrefix(path, "/")
	if !ok {
		return false, elsewhere
	}
	parts := strings.Split(rest, "/")
	if !allSegments(parts) {
		return false, elsewhere
	}
	switch parts[0] {
	case "version":
		return false, unless(len(parts) == 1, elsewhere)
	case "openapi":
		return false, unless(len(parts) >= 2 && len(parts) <= 5 && (parts[1] == "v2" && len(parts) == 2 || parts[1] == "v3"), elsewhere)
	case "api":
		switch {
		case len(parts) == 1, len(parts) == 2 && parts[1] == "v1":
			return false, ""
		case parts[1] != "v1":
			return false, elsewhere
		}
		return resource(parts[2:], true)
	case "apis":
		if len(parts) <= 3 { // the groups, one of them, one of its versions
			return false, ""
		}
		return resource(parts[3:], false)
	}
	return false, elsewhere
}

func unless(ok bool, reason string) string {
	if ok {
		return ""
	}
	return reason
}

// resource takes what follows a version: [namespaces/{namespace}/]{resource}[/{name}[/{subresource}]].
func resource(parts []string, core bool) (log bool, reason string) {
	if len(parts) >= 3 && parts[0] == "namespaces" && (!core || !isNamespaceSub(parts)) {
		parts = parts[2:]
	}
	kind := parts[0]
	switch {
	case kind == "secrets":
		return false, "what Secrets hold is not shown here"
	case notResources[kind], core && !coreResources[kind]:
		return false, strconv.Quote(kind) + " is not read from here"
	case len(parts) <= 2:
		return false, ""
	case len(parts) > 3:
		return false, "nothing is reached through the API from here"
	}
	switch sub := parts[2]; {
	case sub == "log" && core && kind == "pods":
		return true, ""
	case sub == "status", sub == "scale":
		return false, ""
	default:
		return false, strconv.Quote(kind+"/"+sub) + " is not read from here"
	}
}

// isNamespaceSub tells a Namespace's own subresource from a resource in it.
func isNamespaceSub(parts []string) bool { return len(parts) == 3 && parts[2] == "status" }

// allSegments: none is empty, leads elsewhere, or holds what a name in Kubernetes never does.
func allSegments(parts []string) bool {
	return !slices.ContainsFunc(parts, func(s string) bool {
		return s == "" || s == "." || s == ".." || strings.ContainsAny(s, `%\?#`) ||
			strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
	})
}
