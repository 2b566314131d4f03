// Package state keeps what an agent must remember over a restart in small files:
// each is replaced whole or not at all, and one that cannot be understood is put
// aside, never trusted and never lost.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/aether-federation/aether/internal/atomicfile"
	"github.com/aether-federation/aether/internal/filelock"
)

// version of the files' form.
const version = 1

// Dir is a directory of state. The zero Dir remembers nothing.
type Dir struct {
	path   string
	unlock func() error
}

// Open returns the directory at path, which is made if it is not there; path empty:
// the zero Dir. No other process can open it until Close, or this one's end.
func Open(path string) (Dir, error) {
	if path == "" {
		return Dir{}, nil
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return Dir{}, fmt.Errorf("open state directory: %w", err)
	}
	unlock, err := filelock.Take(filepath.Join(path, "lock"))
	if err != nil {
		return Dir{}, fmt.Errorf("lock state directory %s: %w", path, err)
	}
	return Dir{path: path, unlock: unlock}, nil
}

// Close lets others open the directory.
func (d Dir) Close() error {
	if d.unlock == nil {
		return nil
	}
	return d.unlock()
}

// envelope is what a file holds.
type envelope struct {
	Version  int             `json:"version"`
	Checksum uint32          `json:"checksum"`
	Content  json.RawMessage `json:"content"`
}

// Load reads what was saved under name into v. Where nothing was, v stays as it
// is and age is negative; age is how long ago it was saved or touched. A file that
// is damaged is renamed, and the error says to what; then v stays as it is too.
func (d Dir) Load(name string, v any) (age time.Duration, err error) {
	if d.path == "" {
		return -1, nil
	}
	if err := atomicfile.Sweep(d.file(name)); err != nil {
		return -1, fmt.Errorf("read state: %w", err)
	}
	b, err := os.ReadFile(d.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("read state: %w", err)
	}
	info, err := os.Stat(d.file(name))
	if err != nil {
		return -1, fmt.Errorf("read state: %w", err)
	}
	if err := open(b, v); err != nil {
		aside := d.file(name) + ".bad"
		return -1, errors.Join(fmt.Errorf("read state %s, which is kept as %s: %w", name, aside, err), os.Rename(d.file(name), aside))
	}
	return max(0, time.Since(info.ModTime())), nil
}

func open(b []byte, v any) error {
	var e envelope
	if err := json.Unmarshal(b, &e); err != nil {
		return err
	}
	if e.Version != version {
		return fmt.Errorf("it has version %d, and this agent reads %d", e.Version, version)
	}
	if crc32.ChecksumIEEE(e.Content) != e.Checksum {
		return errors.New("its checksum is wrong")
	}
	return json.Unmarshal(e.Content, v)
}

// Save replaces what is under name by v, durably.
func (d Dir) Save(name string, v any) error {
	if d.path == "" {
		return nil
	}
	content, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	b, err := json.Marshal(envelope{Version: version, Checksum: crc32.ChecksumIEEE(content), Content: content})
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	if err := atomicfile.Write(d.file(name), b); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	return nil
}

// Touch says that what is under name, if anything is, still holds.
func (d Dir) Touch(name string) error {
	if d.path == "" {
		return nil
	}
	now := time.Now()
	if err := os.Chtimes(d.file(name), now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("touch state: %w", err)
	}
	return nil
}

func (d Dir) file(name string) string { return filepath.Join(d.path, name+".json") }
