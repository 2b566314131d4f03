// Package serving is what a registrar and an agent serve alike: the reads of the
// registry over gRPC and HTTP, from a view; the JSON form of requests, answers and
// errors; and how servers are set up and stopped.
package serving
