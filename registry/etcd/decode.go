package etcd

import (
	"context"
	"log/slog"
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
	return k, true
}

// value reports and refuses what is no value of an endpoint.
func (d decoder) value(k registry.Key, key, value []byte) (registry.Endpoint, bool) {
	e, disagreements, err := wire.ParseValue(k, value)
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
