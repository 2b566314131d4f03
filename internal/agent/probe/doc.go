// Package probe finds out whether endpoints of this machine are well, by asking
// them: over TCP, HTTP or gRPC's health protocol, again and again.
//
// What the answers mean is decided in one place without I/O, the panel: how many
// failures in a row make an endpoint unhealthy and how many successes make it
// healthy again, and that a machine whose probes all fail at once has reason to
// suspect itself rather than everything that runs on it. A [Prober] asks, and lets
// the panel judge.
package probe
