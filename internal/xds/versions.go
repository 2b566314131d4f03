package xds

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"maps"
)

// versions are the versions of resources by name, with a name for all of them
// together that does not depend on their order, and costs nothing to keep.
type versions struct {
	of map[string]string
	// sum of what each name and version hash to, modulo 2^128.
	high, low uint64
}

func newVersions() *versions { return &versions{of: map[string]string{}} }

func (v *versions) set(name, version string) {
	v.remove(name)
	v.of[name] = version
	high, low := hashOf(name, version)
	v.low += low
	if v.low < low {
		v.high++
	}
	v.high += high
}

func (v *versions) remove(name string) {
	version, found := v.of[name]
	if !found {
		return
	}
	delete(v.of, name)
	high, low := hashOf(name, version)
	if v.low < low {
		v.high--
	}
	v.low -= low
	v.high -= high
}

// name of the set: equal for equal sets.
func (v *versions) name() string {
	sum := binary.BigEndian.AppendUint64(nil, v.high)
	return base64.RawURLEncoding.EncodeToString(binary.BigEndian.AppendUint64(sum, v.low))
}

// existing is the versions without those of what does not exist.
func (v *versions) existing() map[string]string {
	out := maps.Clone(v.of)
	maps.DeleteFunc(out, func(_, version string) bool { return version == absent })
	return out
}

func hashOf(name, version string) (high, low uint64) {
	hash := sha256.Sum256([]byte(name + "\x00" + version))
	return binary.BigEndian.Uint64(hash[:]), binary.BigEndian.Uint64(hash[8:])
}
