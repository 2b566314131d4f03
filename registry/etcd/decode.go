package etcd

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

// decoder reads keys and values and reports those that it does not understand.
type decoder struct {
	log            *slog.Logger
	onUnparsable   func(key string, err error)
	onDisagreement func(key string, disagreements []string)
	named          *named
	// names, when set, is where the names in keys and values come from; whoever sets
	// it decodes in one goroutine.
	names *wire.Names
}

// maxNamed is how many keys are named in the log as not understood. A key is named
// once, however often it is written: the counters tell the rest.
const maxNamed = 100

// named are the keys that the log has named.
type named struct {
	mu   sync.Mutex
	keys map[string]bool
}

// level is that at which to log something of a key; last is set with the last key
// that is named.
func (n *named) level(key string) (level slog.Level, last bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.keys[key] || len(n.keys) == maxNamed {
		return slog.LevelDebug, false
	}
	n.keys[key] = true
	return slog.LevelWarn, len(n.keys) == maxNamed
}

func newDecoder(log *slog.Logger, onUnparsable func(string, error), onDisagreement func(string, []string)) decoder {
	if log == nil {
		log = slog.Default()
	}
	return decoder{log: log, onUnparsable: onUnparsable, onDisagreement: onDisagreement, named: &named{keys: map[string]bool{}}}
}

// key reports and refuses what is no key of an endpoint.
func (d decoder) key(key []byte) (registry.Key, bool) {
	k, err := keyspace.Parse(string(key))
	if err != nil {
		d.unparsable(string(key), err)
		return registry.Key{}, false
	}
	if d.names != nil {
		d.own(&k)
	}
	return k, true
}

// own takes the parts of k out of the names, so that they do not keep the whole key
// in memory.
func (d decoder) own(k *registry.Key) {
	k.Region, k.Cluster, k.Service = d.names.Text(k.Region), d.names.Text(k.Cluster), d.names.Text(k.Service)
	k.Protocol = registry.Protocol(d.names.Text(string(k.Protocol)))
	k.Instance = strings.Clone(k.Instance)
}

// value reports and refuses what is no value of an endpoint.
func (d decoder) value(k registry.Key, key, value []byte) (registry.Endpoint, bool) {
	e, disagreements, err := wire.ParseValueNamed(k, value, d.names)
	if err != nil {
		d.unparsable(string(key), err)
		return registry.Endpoint{}, false
	}
	if len(disagreements) > 0 {
		d.disagrees(string(key), disagreements)
	}
	return e, true
}

func (d decoder) unparsable(key string, err error) {
	d.report(key, "skipped what does not parse", "key", key, "error", err)
	if d.onUnparsable != nil {
		d.onUnparsable(key, err)
	}
}

// report logs what is wrong with a key, once, and only so many keys by name.
func (d decoder) report(key, message string, args ...any) {
	level, last := d.named.level(key)
	d.log.Log(context.Background(), level, message, args...)
	if last {
		d.log.Warn("more keys that do not parse are logged at debug level alone", "named", maxNamed)
	}
}

func (d decoder) disagrees(key string, disagreements []string) {
	d.report(key, "value contradicts its key, which wins", "key", key, "disagreements", disagreements)
	if d.onDisagreement != nil {
		d.onDisagreement(key, disagreements)
	}
}
