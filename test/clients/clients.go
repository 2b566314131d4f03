// Package clients is what the gRPC clients of the tests have in common: one in Go,
// one in JavaScript on Node, one in Python on gRPC's C-core. Each finds a service by
// xDS, calls it without pause and counts how that goes. In all three:
//
//	client TARGET CALLS-PER-SECOND DEADLINE-MS SILENCE-MS
//
// calls grpc.health.v1.Health/Check at TARGET, such as xds:///echo, that many times
// a second, and gives each call that many milliseconds. Which xDS server to ask is in
// the file that GRPC_XDS_BOOTSTRAP names. Calls do not wait for a server to be there
// (no wait-for-ready), and are not retried by the program. A connection that answers
// nothing for SILENCE-MS is given up, by gRPC's keepalive; 0 leaves that off, as it is
// unless a program asks for it.
//
// Every 100 ms it prints a Period as one line of JSON. SIGTERM, or the end of its
// input, ends it: it waits for calls under way, prints what came of them, and exits
// with 0.
package clients

import "google.golang.org/grpc/codes"

// BackendHeader names, in the header of an answer, who answered.
const BackendHeader = "backend"

// Period is what became of the calls that ended since the Period before.
type Period struct {
	// Time is when the Period ended, in milliseconds since 1970.
	Time int64 `json:"time"`
	// OK counts the calls that were answered, by who answered.
	OK map[string]int `json:"ok"`
	// Failed are all others.
	Failed []Failure `json:"failed"`
}

// Failure is one call that failed.
type Failure struct {
	// Started is when the call began, in milliseconds since 1970.
	Started int64      `json:"started"`
	Code    codes.Code `json:"code"`
	Text    string     `json:"text"`
}
