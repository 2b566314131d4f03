//go:build unix

package freeport

import "testing"

// A lock is an open file's, so that a second one of this process is as good as
// another process's.
func TestNobodyElseReservesAPortThatWasFound(t *testing.T) {
	a, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	if reserve(a.Port()) {
		t.Errorf("port %d was reserved twice", a.Port())
	}
}
