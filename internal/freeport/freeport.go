// Package freeport finds ports for servers that others have to know before they
// listen, and that come back at the same port after they were killed.
package freeport

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
)

// Systems take the ports of outgoing connections from above: 32768 on Linux, 49152
// on macOS. A port from there may be gone by the time a server listens at it.
const (
	lowest  = 10000
	highest = 32000
	tries   = 1000
)

var (
	mu    sync.Mutex
	taken = map[uint16]bool{}
)

// Find returns a loopback address that nothing listens at, another one at each
// call. No other process finds it while this one lives, where the system has file
// locks and both are one user's. The files that are locked are empty, and stay in the
// user's cache.
func Find() (netip.AddrPort, error) {
	mu.Lock()
	defer mu.Unlock()
	for range tries {
		port := uint16(lowest + rand.N(highest-lowest))
		address := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
		if taken[port] {
			continue
		}
		taken[port] = true
		// Reserved before it is tried: whoever has it may be about to listen again.
		if !reserve(port) {
			continue
		}
		l, err := net.Listen("tcp", address.String())
		if err != nil {
			continue
		}
		return address, l.Close()
	}
	return netip.AddrPort{}, errors.New("find a free port: all that were tried are taken")
}
