#!/bin/sh
# Runs the tests that need a real host cluster (build tag e2e) against a development host that it starts and stops.
set -eu
cd "$(dirname "$0")/.."
KUBEBYON_STATE=${KUBEBYON_STATE:-$PWD/.run/e2e}
export KUBEBYON_STATE
mkdir -p "$KUBEBYON_STATE" .bin
go build -o .bin/devhost ./deploy/devhost
trap '.bin/devhost down' EXIT
trap 'exit 130' INT TERM
.bin/devhost up
KUBEBYON_TEST_HOST_KUBECONFIG=$KUBEBYON_STATE/host.kubeconfig
export KUBEBYON_TEST_HOST_KUBECONFIG
# One package after the other: they share the host.
go list -tags e2e -f '{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}} {{.ImportPath}}{{end}}' work |
	while read -r dir package; do
		if grep -lq '^//go:build e2e' "$dir"/*_test.go 2>/dev/null; then echo "$package"; fi
	done >"$KUBEBYON_STATE/packages"
xargs go test -tags e2e -run '^TestE2E' -p 1 -count 1 -timeout 30m <"$KUBEBYON_STATE/packages"
