// Package registrar serves one cluster's registry: it takes registrations for
// its own partition, follows its region's etcd, and serves from memory the
// merged view of the own region and of every region that is mirrored there.
//
// The package is in three layers. Decisions are pure: lease.go says what a
// reading of a lease proves, judge.go what follows for one region, core.go
// keeps what the feed told and what is shown; no clock, goroutine or lock is in
// them. [View] is the shell around them: it runs the feed, asks for leases, and
// publishes what changes to package view, which has the readers.
// [Server] answers gRPC and HTTP from the view, and passes writes on to a store.
//
// Two rules govern foreign regions. Whole or not at all: a region is shown, and
// withdrawn, in one version of the view. Proof, not silence: it is withdrawn
// because the local etcd says that its lease ran out, never because the local
// etcd says nothing.
package registrar
