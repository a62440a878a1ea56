package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubebyon/kubebyon/deploy/devhost/layout"
)

func TestUsage(t *testing.T) {
	none := func(name string) (string, bool) { return "/nowhere", name == "HOME" }
	for _, args := range [][]string{nil, {"start"}, {"up", "now"}, {"mirror"}, {"down", "x"}} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), args, none, &out, &errs); code != 2 || !strings.Contains(errs.String(), "devhost up") {
			t.Errorf("%q: exit status %d, stderr %s", args, code, errs.String())
		}
	}
	var out, errs bytes.Buffer
	broken := func(name string) (string, bool) { return "10.0.0.0/8", true }
	if code := run(t.Context(), []string{"up"}, broken, &out, &errs); code != 1 || !strings.Contains(errs.String(), "it accepts 198.18.X.0/24") {
		t.Errorf("exit status %d, stderr %s", code, errs.String())
	}
}

func TestExternal(t *testing.T) {
	l := layout.Layout{State: t.TempDir()}
	for value, want := range map[string]string{"": "", l.Kubeconfig(): "", filepath.Join(l.State, ".", "host.kubeconfig"): "", "/home/u/.kube/config": "/home/u/.kube/config"} {
		if got := external(l, func(string) (string, bool) { return value, true }); got != want {
			t.Errorf("KUBECONFIG=%q is %q", value, got)
		}
	}
}
