// Package registry is the domain of Aether: what an endpoint is, where it comes
// from, and the contract that every implementation of a registry keeps.
//
// A region owns the endpoints of its clusters and is their only writer. Other
// regions see them as mirrored, and a registry that serves several regions
// serves them side by side: an endpoint's identity is its [Key], in which the
// region and cluster come first, so equal addresses in two regions never meet.
//
// The package uses the standard library alone. [keyspace] lays keys out in etcd,
// package etcd stores them there, package remote reaches a registrar.
package registry
