package etcd

import (
	"log/slog"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

// decoder reads keys and values and reports those that it does not understand.
type decoder struct {
	log            *slog.Logger
	onUnparsable   func(key string, err error)
	onDisagreement func(key string, disagreements []string)
}

func newDecoder(log *slog.Logger, onUnparsable func(string, error), onDisagreement func(string, []string)) decoder {
	if log == nil {
		log = slog.Default()
	}
	return decoder{log: log, onUnparsable: onUnparsable, onDisagreement: onDisagreement}
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
	d.log.Warn("skipped what does not parse", "key", key, "error", err)
	if d.onUnparsable != nil {
		d.onUnparsable(key, err)
	}
}

func (d decoder) disagrees(key string, disagreements []string) {
	d.log.Warn("value contradicts its key, which wins", "key", key, "disagreements", disagreements)
	if d.onDisagreement != nil {
		d.onDisagreement(key, disagreements)
	}
}
