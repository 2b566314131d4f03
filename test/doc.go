// Package test runs Aether as its users do: the real binary over real etcds, all
// in processes of their own, several regions at a time. Its tests ask through the
// command line and the HTTP API, and look at the etcds directly where a promise is
// about keys.
package test
