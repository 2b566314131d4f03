// Package local is the agent's API for programs on its machine: the registry as the
// agent knows it, over gRPC and HTTP as a registrar serves it, and registrations,
// which it hands to the agent's node. A listener may speak both at once, as that of
// a Unix socket does.
package local
