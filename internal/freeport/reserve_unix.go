//go:build unix

package freeport

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// reservations are the locked files of the ports that this process has found. They
// are never closed: their locks end with the process, however it ends.
var reservations []*os.File

// reserve reports whether no other process has reserved the port. Where files can't
// be made nobody reserves anything, and every port is free.
func reserve(port uint16) bool {
	cache, err := os.UserCacheDir()
	if err != nil {
		return true
	}
	dir := filepath.Join(cache, "aether", "ports")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return true
	}
	f, err := os.OpenFile(filepath.Join(dir, fmt.Sprint(port)), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return true
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close() // it is another's
		return false
	}
	reservations = append(reservations, f)
	return true
}
