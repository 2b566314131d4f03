// Package e2e runs three regions on one machine: network namespaces with an etcd of
// three members, two registrars, an agent and backends each, and all kinds of gRPC
// clients that call without pause. It takes minutes, root and Linux, so that its
// tests run only with AETHER_E2E=1: see scripts/e2e.
package e2e
