// Package atomicfile replaces files so that whoever reads one finds the old or the
// new one, whatever happens in between.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Write replaces the file at path, whole or not at all, whenever the machine stops.
// Its directory is made if it is not there.
func Write(path string, content []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreMissing(os.Remove(f.Name())))
		}
	}()
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Sweep removes what writes of the file at path that were broken off have left.
func Sweep(path string) error {
	left, err := filepath.Glob(path + ".*.tmp")
	for _, name := range left {
		err = errors.Join(err, ignoreMissing(os.Remove(name)))
	}
	return err
}
