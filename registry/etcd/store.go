// Package etcd keeps a registry in etcd.
//
// A [Store] writes one partition, that of its region and cluster, and reads the
// region's endpoints. A [Feed] follows everything that a registrar's view needs:
// the endpoints of all regions, own and mirrored, and the state of the mirrors.
// Keys and values are those of packages keyspace and wire.
package etcd

import (
	"errors"
	"log/slog"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
)

const (
	// DefaultRequestTimeout bounds one request to etcd.
	DefaultRequestTimeout = 5 * time.Second

	maxBatchBytes = 1 << 20 // keys and values of one transaction; etcd refuses 1.5 MiB
	pageSize      = 2000    // keys of one page of a list
)

// Config is what a Store is made of.
type Config struct {
	// Client of the region's own etcd. The caller closes it.
	Client *clientv3.Client
	// Origin is the partition that the store writes.
	Origin registry.Origin
	// Log gets what is found in etcd and not understood. Nil: the default.
	Log *slog.Logger
	// RequestTimeout bounds each request to etcd; 0 means DefaultRequestTimeout.
	RequestTimeout time.Duration
	// OnUnparsable, when set, is called for each key or value that was read and
	// skipped. It may be called by several goroutines at once.
	OnUnparsable func(key string, err error)
	// OnDisagreement, when set, is called for each value that contradicts its
	// key, which wins. It may be called by several goroutines at once.
	OnDisagreement func(key string, disagreements []string)
	// Present tells whether a node that holds an endpoint is there, so that
	// nobody else may register it. Nil: each is. It may be wrong for a moment:
	// what an absent node holds is taken over only if, in the same transaction,
	// the node's presence key does not exist.
	Present func(node string) bool
	// Known, when set, tells whether a key is thought to exist. A wrong answer
	// costs a request, a right one that it does not saves one.
	Known func(key registry.Key) bool
	// OnCommit, when set, is told of each transaction that begins: how many writes
	// it is for, and how long the first of them has waited. It must not
	// block, nor call the store.
	OnCommit func(writes int, waited time.Duration)
}

// Validate tells what is missing or wrong.
func (c Config) Validate() error {
	if c.Client == nil {
		return errors.New("a store needs a client of its region's etcd")
	}
	if c.RequestTimeout < 0 {
		return errors.New("the request timeout of a store must not be negative")
	}
	return c.Origin.Validate()
}

// Store is a [registry.Registry] in etcd. Its writes cannot leave its own
// partition. List and Watch show the endpoints of all clusters of its own
// region; mirrored regions are for a registrar to judge, which follows them with
// a [Feed].
//
// Revisions are etcd's, in decimal. Endpoints carry no lease, but for those that
// were registered with RegisterFor.
type Store struct {
	client *clientv3.Client
	// kv sends transactions that are messages already.
	kv      etcdserverpb.KVClient
	origin  registry.Origin
	timeout time.Duration
	present func(node string) bool
	known   func(key registry.Key) bool
	decoder decoder
	group   *group
}

var _ registry.Registry = (*Store)(nil)

// New returns a Store. It sends nothing to etcd.
func New(c Config) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Store{
		client: c.Client, kv: clientv3.RetryKVClient(c.Client), origin: c.Origin, timeout: requestTimeout(c.RequestTimeout), present: c.Present,
		known:   c.Known,
		decoder: newDecoder(c.Log, c.OnUnparsable, c.OnDisagreement),
	}
	s.group = newGroup(s.transact)
	if c.OnCommit != nil {
		s.group.began = c.OnCommit
	}
	if s.known == nil {
		s.known = func(registry.Key) bool { return true }
	}
	if s.present == nil {
		s.present = func(string) bool { return true }
	}
	return s, nil
}

// Client returns the client of the region's etcd; with OwnPrefix it makes the
// store a source for the replicator.
func (s *Store) Client() *clientv3.Client { return s.client }

// OwnPrefix returns the range of all that the store's region owns.
func (s *Store) OwnPrefix() string { return keyspace.RegionPrefix(s.origin.Region) }

// Waiting returns how many writes wait for a transaction.
func (s *Store) Waiting() int {
	s.group.mu.Lock()
	defer s.group.mu.Unlock()
	return s.group.waiting
}

func requestTimeout(d time.Duration) time.Duration {
	if d == 0 {
		return DefaultRequestTimeout
	}
	return d
}
