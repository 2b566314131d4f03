package freeport_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/aether-federation/aether/internal/freeport"
)

func TestFindIsAnotherEachTimeAndFree(t *testing.T) {
	seen := map[netip.AddrPort]bool{}
	for range 100 {
		a, err := freeport.Find()
		if err != nil {
			t.Fatal(err)
		}
		if seen[a] {
			t.Fatalf("%v was found twice", a)
		}
		seen[a] = true
		l, err := net.Listen("tcp", a.String())
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
	}
}
