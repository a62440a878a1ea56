package app_test

import (
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"

	"github.com/kubebyon/kubebyon/gateway/api"
	"github.com/kubebyon/kubebyon/gateway/internal/httpapi"
)

func served(t *testing.T) (routes []string) {
	t.Helper()
	for _, r := range httpapi.New(httpapi.Options{Log: slog.New(slog.DiscardHandler)}).Routes() {
		routes = append(routes, r.Method+" "+strings.ReplaceAll(r.Path, "...}", "}"))
	}
	slices.Sort(routes)
	return routes
}

func described(tb testing.TB) *openapi3.T {
	tb.Helper()
	spec, err := openapi3.NewLoader().LoadFromData(api.OpenAPI)
	if err != nil {
		tb.Fatal(err)
	}
	return spec
}

// A route that takes an Idempotency-Key says so, with the header that its answer has when it is given once more; no other does.
func TestIdempotencyKeysAreDescribed(t *testing.T) {
	spec, repeatable := described(t), 0
	for _, r := range httpapi.New(httpapi.Options{Log: slog.New(slog.DiscardHandler)}).Routes() {
		operation := spec.Paths.Value(strings.ReplaceAll(r.Path, "...}", "}")).GetOperation(r.Method)
		if r.Repeatable {
			repeatable++
		}
		if says := operation.Parameters.GetByInAndName(openapi3.ParameterInHeader, "Idempotency-Key") != nil; says != r.Repeatable {
			t.Errorf("%s %s: that it takes an Idempotency-Key is %v, and described is %v", r.Method, r.Path, r.Repeatable, says)
		}
		for status, response := range operation.Responses.Map() {
			if says := response.Value.Headers["Idempotency-Replayed"] != nil; says != (r.Repeatable && strings.HasPrefix(status, "2")) {
				t.Errorf("%s %s: %s describes Idempotency-Replayed: %v", r.Method, r.Path, status, says)
			}
		}
	}
	if repeatable < 10 {
		t.Errorf("only %d routes take one", repeatable)
	}
}

func TestDescriptionIsValidAndWhole(t *testing.T) {
	spec := described(t)
	if err := spec.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	var listed []string
	for path, item := range spec.Paths.Map() {
		for method, operation := range item.Operations() {
			listed = append(listed, method+" "+path)
			if operation.OperationID == "" || operation.Summary == "" || len(operation.Tags) == 0 {
				t.Errorf("%s %s says nothing about itself", method, path)
			}
			got := map[string]bool{}
			if operation.Security != nil {
				for _, way := range *operation.Security {
					for name := range way {
						got[name] = true
					}
				}
			}
			u := allUses()[method+" "+path]
			if got["session"] != (u.who != anybody) || got["token"] != (u.who != anybody && !u.inPerson) {
				t.Errorf("%s %s: security %v", method, path, got)
			}
		}
	}
	slices.Sort(listed)
	if diff := cmp.Diff(served(t), listed); diff != "" {
		t.Errorf("served (-) and described (+) differ:\n%s", diff)
	}
}
