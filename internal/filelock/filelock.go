// Package filelock keeps two processes from using the same directory.
package filelock

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// errTaken: another process has the lock.
var errTaken = errors.New("another process uses it")

// Take takes the file at path for this process, at once or not at all. The
// kernel lets go of it when the process ends, however that happens.
func Take(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errTaken
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f.Close, nil
}
