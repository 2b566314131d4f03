// Package dns answers for services as DNS, so that any program can use the registry
// unchanged.
//
// <service>.aether. has A, AAAA and SRV records, and
// _<port name>._<protocol>.<service>.aether. has SRV records; a protocol is http,
// grpc, tcp or udp, and _tcp stands for all but udp. The answer is the healthy
// endpoints of the own region, those of the own zone first; those of another region
// only when there are none here, the nearest region's first. Endpoints of another
// network are answered by their gateway. Within one tier the order is random.
//
// A service that is not there does not exist (NXDOMAIN). One that has nothing
// healthy, or nothing of the kind asked for, has no data: retrying soon is right,
// and the negative TTL says so. Before anything is known the server fails.
//
// names.go reads names, choose.go decides which targets, answer.go makes messages
// of them; all three are pure but for the order.
package dns
