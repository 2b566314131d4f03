package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/view"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/wire"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
)

// A file is a header, then a body: how long the head is, the head, and each
// endpoint as a message with its length before it. The header is the magic, the
// version, and the length and the SHA-256 of the body.
const (
	magic   = "aetherVW"
	version = 1
	// leastEndpoint is what any endpoint takes.
	leastEndpoint = 16
	headerSize    = len(magic) + 4 + 8 + sha256.Size
)

// head is what a file says besides its endpoints.
type head struct {
	// Region is the registrars' own.
	Region    string            `json:"region"`
	Revision  registry.Revision `json:"revision"`
	Proven    time.Time         `json:"proven"`
	Asked     time.Time         `json:"asked"`
	Endpoints int               `json:"endpoints"`
	// Regions is a ListRegionsResponse.
	Regions []byte `json:"regions"`
}

// lastKnown is a view as it is on disk.
type lastKnown struct {
	head
	regions   []*registryv1.Region
	endpoints []*registry.Endpoint
}

// encode writes a snapshot as a file.
func encode(h head, s view.Snapshot) ([]byte, error) {
	h.Endpoints = s.Len()
	text, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode head: %w", err)
	}
	var b bytes.Buffer
	b.Write(make([]byte, headerSize))
	b.Write(binary.AppendUvarint(nil, uint64(len(text))))
	b.Write(text)
	for _, endpoints := range s.Services {
		for _, e := range endpoints {
			if _, err := protodelim.MarshalTo(&b, wire.ToProto(*e)); err != nil {
				return nil, fmt.Errorf("encode endpoint: %w", err)
			}
		}
	}
	file := b.Bytes()
	sum := sha256.Sum256(file[headerSize:])
	header := append([]byte(nil), magic...)
	header = binary.BigEndian.AppendUint32(header, version)
	header = binary.BigEndian.AppendUint64(header, uint64(len(file)-headerSize))
	copy(file, append(header, sum[:]...))
	return file, nil
}

// errRefused is of a file that is not served, because of what it is.
type errRefused struct{ reason string }

func (e errRefused) Error() string { return e.reason }

func refused(format string, args ...any) error { return errRefused{fmt.Sprintf(format, args...)} }

// decode reads a file for an agent in a region; "": in any.
func decode(file []byte, region string) (lastKnown, error) {
	body, err := checked(file)
	if err != nil {
		return lastKnown{}, err
	}
	r := bytes.NewReader(body)
	k, err := readHead(r)
	if err != nil {
		return lastKnown{}, err
	}
	if region != "" && k.Region != region {
		return lastKnown{}, refused("it is of region %q, and this agent is in %q", k.Region, region)
	}
	// An endpoint takes more bytes than leastEndpoint: what a head says is no reason
	// to ask for memory.
	k.endpoints = make([]*registry.Endpoint, 0, max(0, min(k.Endpoints, r.Len()/leastEndpoint)))
	m := &registryv1.Endpoint{}
	for r.Len() > 0 {
		m.Reset()
		if err := protodelim.UnmarshalFrom(r, m); err != nil {
			return lastKnown{}, refused("endpoint %d does not parse: %v", len(k.endpoints), err)
		}
		e, err := wire.FromProto(m)
		if err != nil {
			return lastKnown{}, refused("endpoint %d does not parse: %v", len(k.endpoints), err)
		}
		intern(&e)
		k.endpoints = append(k.endpoints, &e)
	}
	if len(k.endpoints) != k.Endpoints {
		return lastKnown{}, refused("it has %d endpoints and says %d", len(k.endpoints), k.Endpoints)
	}
	return k, nil
}

// checked returns the body of a file that is whole.
func checked(file []byte) ([]byte, error) {
	if len(file) < headerSize {
		return nil, refused("it is cut short: it has %d bytes", len(file))
	}
	header, body := file[:headerSize], file[headerSize:]
	if string(header[:len(magic)]) != magic {
		return nil, refused("it is no view of an agent")
	}
	header = header[len(magic):]
	if v := binary.BigEndian.Uint32(header); v != version {
		return nil, refused("it is of version %d, and this agent reads version %d", v, version)
	}
	if n := binary.BigEndian.Uint64(header[4:]); n != uint64(len(body)) {
		return nil, refused("it is cut short: its body has %d of %d bytes", len(body), n)
	}
	if sum := sha256.Sum256(body); !bytes.Equal(sum[:], header[12:]) {
		return nil, refused("it is damaged: its checksum is another")
	}
	return body, nil
}

func readHead(r *bytes.Reader) (lastKnown, error) {
	n, err := binary.ReadUvarint(r)
	if err != nil || n > uint64(r.Len()) {
		return lastKnown{}, refused("its head does not parse")
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return lastKnown{}, refused("its head does not parse: %v", err)
	}
	var k lastKnown
	if err := json.Unmarshal(text, &k.head); err != nil {
		return lastKnown{}, refused("its head does not parse: %v", err)
	}
	answer := &registryv1.ListRegionsResponse{}
	if err := proto.Unmarshal(k.Regions, answer); err != nil {
		return lastKnown{}, refused("its regions do not parse: %v", err)
	}
	k.regions = answer.GetRegions()
	return k, nil
}

// write replaces the file at path, whole or not at all, whenever the machine stops.
func write(path string, content []byte) (err error) {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
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

// sweepTemps removes what writes that were broken off have left.
func sweepTemps(path string) error {
	left, err := filepath.Glob(path + ".*.tmp")
	for _, name := range left {
		err = errors.Join(err, ignoreMissing(os.Remove(name)))
	}
	return err
}
