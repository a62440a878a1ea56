# KubeBYON. `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

MODULES  := pkg gateway services deploy
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
BIN      := .bin
LINT     := $(BIN)/golangci-lint-v2.15.0
GOBUILD  := CGO_ENABLED=0 GOOS=linux GOARCH=amd64 go build -trimpath -ldflags "-s -w -X github.com/kubebyon/kubebyon/pkg/process.version=$(VERSION)"

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: prerequisites ## set everything up on this machine, run the acceptance run, stay up until Ctrl-C
	go build -o $(BIN)/acceptance ./deploy/acceptance
	@exec $(BIN)/acceptance --stay

.PHONY: acceptance
acceptance: prerequisites ## the acceptance run alone; ends with one line of JSON, seconds per step
	go build -o $(BIN)/acceptance ./deploy/acceptance
	@exec $(BIN)/acceptance

.PHONY: test
test: prerequisites test-unit test-integration test-e2e acceptance ## every test: unit, integration, end to end, acceptance

.PHONY: test-unit
test-unit: ## tests that start no server, under a minute
	deploy/test-packages.sh unit | xargs go test

.PHONY: test-integration
test-integration: prerequisites kubernetes ## tests against real PostgreSQL, NATS and kube-apiserver, with the race detector
	deploy/test-packages.sh integration | xargs go test -race -p 2 -timeout 20m
	for m in $(MODULES); do (cd $$m && GOWORK=off go build ./...); done

.PHONY: test-e2e
test-e2e: prerequisites kubernetes ## tests against the development host cluster: a real node, real tenants, real workers
	deploy/test-e2e.sh

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (default 10s)
	deploy/fuzz.sh $(or $(FUZZTIME),10s)

.PHONY: bench
bench: prerequisites kubernetes ## measure and write docs/performance.md
	go run ./deploy/bench

.PHONY: lint
lint: $(LINT) ## golangci-lint, shellcheck, gofmt, import directions
	@for m in $(MODULES); do echo "lint $$m"; (cd $$m && ../$(LINT) run --config ../.golangci.yml ./...); done
	git ls-files '*.sh' .ci/run | xargs shellcheck
	go test -count=1 ./pkg/arch

$(LINT):
	GOBIN=$(CURDIR)/$(BIN) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
	mv $(BIN)/golangci-lint $@

.PHONY: build
build: ## static Linux binaries into .bin
	$(GOBUILD) -o $(BIN)/kubebyon-api ./deploy/standalone
	$(GOBUILD) -o $(BIN)/kubebyon-setup ./deploy/setup
	$(GOBUILD) -o $(BIN)/kubebyon-gateway ./gateway
	for s in cluster token node edge; do $(GOBUILD) -o $(BIN)/kubebyon-$$s ./services/$$s; done

.PHONY: prerequisites
prerequisites: ## Debian packages that the commands here need (installs them as root, else says which)
	@deploy/prerequisites.sh

.PHONY: kubernetes
kubernetes: ## Kubernetes' binaries for the development host, downloaded or built once
	go run ./deploy/devhost build

.PHONY: devhost-up
devhost-up: prerequisites ## the development host cluster alone
	go run ./deploy/devhost up

.PHONY: devhost-down
devhost-down: ## stop it and leave nothing behind
	go run ./deploy/devhost down
