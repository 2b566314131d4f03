// Package xds serves a registry's endpoints to gRPC clients and to Envoy, by the
// xDS protocol: state of the world and delta, over one aggregated stream.
//
// A resource's name is <service> or <service>:<port name>, and the same for all
// types. What a client gets depends on where it runs, which the node of its first
// request tells. Translation (assign.go, spill.go, resources.go) and the protocol's
// bookkeeping (subscription.go) are pure; cache.go follows the services that
// somebody asked for, and stream.go and server.go move messages.
//
// Versions are made from content: a restart, or another replica, sends nothing to a
// client that has it all.
package xds
