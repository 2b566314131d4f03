# Everything here needs Go alone; tools are built once, outside the tree.
GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS = -X main.version=$(VERSION)
# The end-to-end tests build a binary that is not race-enabled: they say nothing
# new under the race detector.
RACE_PACKAGES = $(shell $(GO) list ./... | grep -vE '/(test|e2e)(/|$$)')

.PHONY: help build clients test race lint generate bench soak storm demo smoke e2e failover
help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

build: ## build bin/aether
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/aether ./cmd/aether

clients: ## install the gRPC clients of the tests: Node's and Python's packages
	scripts/xds-clients

test: clients ## run all tests, the end-to-end ones too
	$(GO) test -timeout 15m ./...

race: ## run the tests under the race detector (needs a C compiler on Linux)
	$(GO) test -race -timeout 20m $(RACE_PACKAGES)

lint: ## go vet, staticcheck, gofumpt
	scripts/lint

generate: ## generate the code of api/
	scripts/generate

bench: ## keys per second of the initial mirror beside raw batched puts
	$(GO) test -run '^$$' -bench . -benchtime 1x -timeout 30m ./bench/...

soak: ## random changes and faults around a mirror: ten seeds of six minutes
	AETHER_SOAK=$(or $(AETHER_SOAK),6m) AETHER_SEEDS=$(or $(AETHER_SEEDS),10) \
		$(GO) test -run '^TestModel$$' -v -timeout 0 ./replicator

storm: ## each fault of each part of a fleet, during and after each other fault
	AETHER_SOAK=$(or $(AETHER_SOAK),2h) AETHER_SEED=$(or $(AETHER_SEED),1) \
		$(GO) test -run '^TestStorm$$' -v -timeout 0 ./test

demo: ## two regions on this machine, told as it happens
	$(GO) run ./cmd/aether demo

smoke: build ## try the built binary
	scripts/smoke bin/aether

e2e: ## three regions as network namespaces under gRPC clients' calls (root, Linux)
	scripts/e2e

failover: ## how long a lost region is served and called, measured for docs/failover.md
	scripts/e2e failover
