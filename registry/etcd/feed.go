package etcd

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/registry"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
)

// FeedConfig is what a Feed is made of; the fields are those of [Config].
type FeedConfig struct {
	Client         *clientv3.Client
	Log            *slog.Logger
	RequestTimeout time.Duration
	OnUnparsable   func(key string, err error)
	OnDisagreement func(key string, disagreements []string)
}

// Feed follows the endpoints of all regions in one etcd and the mirrors' state.
type Feed struct {
	client  *clientv3.Client
	timeout time.Duration
	decoder decoder
}

// NewFeed returns a Feed. It sends nothing to etcd.
func NewFeed(c FeedConfig) (*Feed, error) {
	if c.Client == nil {
		return nil, errors.New("a feed needs a client of its region's etcd")
	}
	if c.RequestTimeout < 0 {
		return nil, errors.New("the request timeout of a feed must not be negative")
	}
	return &Feed{
		client: c.Client, timeout: requestTimeout(c.RequestTimeout),
		decoder: newDecoder(c.Log, c.OnUnparsable, c.OnDisagreement),
	}, nil
}

// Update is one step of a Feed.
type Update struct {
	// Reset: what was told before is void; a snapshot follows, in any number of
	// updates. What was complete before stays the best that is known until
	// Synced.
	Reset bool
	// Synced: the snapshot is complete, at Revision.
	Synced bool
	// Progress: everything up to Revision was told, and Revision was the head
	// of the store, by a linearizable read, no earlier than At. It comes about
	// every half second while that can be proven; a watch that hangs, or is
	// served by a member that is cut off from its leader, has none.
	Progress bool
	// Revision of etcd; 0 in a snapshot before Synced.
	Revision int64
	// At is set with Progress.
	At time.Time
	// Endpoints and Mirrors that changed, in the order of their revisions, whole
	// revisions only. Both may be empty: what changed did not parse.
	Endpoints []EndpointChange
	Mirrors   []MirrorChange
	Presence  []PresenceChange
}

// PresenceChange is a node or a registrar that came or, with Deleted, went.
type PresenceChange struct {
	Origin registry.Origin
	// Node or Registrar is its name.
	Node, Registrar string
	Deleted         bool
}

// EndpointChange is an endpoint that is new or has changed or, with Delete, is
// gone; then only Endpoint.Key is set. One whose value no longer parses counts
// as gone. A delete may name a key that was never told.
type EndpointChange struct {
	Delete   bool
	Endpoint registry.Endpoint
	// ModRevision of the key in this etcd.
	ModRevision int64
}

// MirrorChange is a change of a key that an origin keeps beside its mirror here.
type MirrorChange struct {
	// Origin is the name of the region.
	Origin  string
	Leaf    keyspace.Leaf
	Deleted bool
	// Owner, State or Live is set according to Leaf; none when Deleted, and none
	// when the value does not parse.
	Owner *mirrorv1.Owner
	State *mirrorv1.State
	Live  *mirrorv1.Live
	// LeaseID of the key; 0: none.
	LeaseID int64
}

// Run calls fn with a Reset, the snapshot, Synced, and then each change, until
// ctx ends or fn returns an error, and returns that error. Endpoints and mirrors
// come from one watch, so the order between them is etcd's too: the keys that a
// mirror's state declares complete are told before it.
//
// It goes on through faults of etcd: where it can it resumes, otherwise it
// starts over with another Reset. Only an etcd that denies the first list ends
// it, with Denied.
//
// fn is called by one goroutine and must return soon, because what etcd sends
// meanwhile is kept in memory.
func (f *Feed) Run(ctx context.Context, fn func(Update) error) error {
	// One range that holds mirrors/ and regions/, with presence/ between them.
	all := span{keyspace.MirrorsPrefix, keyspace.RangeEnd(keyspace.RegionsPrefix)}
	decoder := f.decoder
	decoder.names = wire.NewNames()
	fo := &follower{
		client: f.client, span: all, timeout: f.timeout, log: f.decoder.log,
		sink: &feedSink{decoder: decoder, fn: fn},
	}
	return fo.run(ctx)
}

// feedSink turns what a follower sees into updates.
type feedSink struct {
	decoder decoder
	fn      func(Update) error
}

func (s *feedSink) reset() error { return s.fn(Update{Reset: true}) }

func (s *feedSink) page(kvs []*mvccpb.KeyValue) error {
	u := Update{Endpoints: make([]EndpointChange, 0, len(kvs))}
	for _, kv := range kvs {
		s.add(&u, &clientv3.Event{Type: clientv3.EventTypePut, Kv: kv})
	}
	return s.fn(u)
}

func (s *feedSink) synced(rev int64) error { return s.fn(Update{Synced: true, Revision: rev}) }

func (s *feedSink) events(events []*clientv3.Event, rev int64) error {
	u := Update{Revision: rev, Endpoints: make([]EndpointChange, 0, len(events))}
	for _, ev := range events {
		s.add(&u, ev)
	}
	return s.fn(u)
}

func (s *feedSink) current(rev int64, at time.Time) error {
	return s.fn(Update{Progress: true, Revision: rev, At: at})
}

func (s *feedSink) add(u *Update, ev *clientv3.Event) {
	switch key := string(ev.Kv.Key); {
	case strings.HasPrefix(key, keyspace.RegionsPrefix):
		if c, ok := s.decoder.change(ev, func(string) bool { return true }); ok {
			u.Endpoints = append(u.Endpoints, c)
		}
	case strings.HasPrefix(key, keyspace.MirrorsPrefix):
		if c, ok := s.decoder.mirror(ev); ok {
			u.Mirrors = append(u.Mirrors, c)
		}
	case strings.HasPrefix(key, keyspace.PresenceRoot):
		if c, ok := s.decoder.presence(ev); ok {
			u.Presence = append(u.Presence, c)
		}
	}
}

// presence decodes an event in the range of presence.
func (d decoder) presence(ev *clientv3.Event) (PresenceChange, bool) {
	key := string(ev.Kv.Key)
	c := PresenceChange{Deleted: ev.Type == clientv3.EventTypeDelete}
	var ok bool
	if c.Origin, c.Node, ok = keyspace.ParsePresence(key); ok {
		return c, true
	}
	if c.Origin, c.Registrar, ok = keyspace.ParseRegistrarPresence(key); ok {
		return c, true
	}
	d.unparsable(key, registry.Invalidf("key", "is no node's and no registrar's presence"))
	return PresenceChange{}, false
}

// change decodes an event in a region's range, if its service is wanted.
func (d decoder) change(ev *clientv3.Event, wants func(service string) bool) (EndpointChange, bool) {
	k, ok := d.key(ev.Kv.Key)
	if !ok || !wants(k.Service) {
		return EndpointChange{}, false
	}
	gone := EndpointChange{Delete: true, Endpoint: registry.Endpoint{Key: k}, ModRevision: ev.Kv.ModRevision}
	if ev.Type == clientv3.EventTypeDelete {
		return gone, true
	}
	e, ok := d.value(k, ev.Kv.Key, ev.Kv.Value)
	if !ok {
		return gone, true
	}
	return EndpointChange{Endpoint: e, ModRevision: ev.Kv.ModRevision}, true
}

// mirror decodes an event in the range of the mirrors.
func (d decoder) mirror(ev *clientv3.Event) (MirrorChange, bool) {
	origin, leaf, ok := keyspace.ParseMirror(string(ev.Kv.Key))
	if keyspace.IsProbe(string(ev.Kv.Key)) {
		return MirrorChange{}, false
	}
	if !ok {
		d.unparsable(string(ev.Kv.Key), registry.Invalidf("key", "is none of a mirror's keys"))
		return MirrorChange{}, false
	}
	c := MirrorChange{Origin: origin, Leaf: leaf, LeaseID: ev.Kv.Lease}
	if ev.Type == clientv3.EventTypeDelete {
		c.Deleted = true
		return c, true
	}
	if err := c.decode(ev.Kv.Value); err != nil {
		d.unparsable(string(ev.Kv.Key), err)
	}
	return c, true
}

func (c *MirrorChange) decode(value []byte) error {
	owner, state, live := &mirrorv1.Owner{}, &mirrorv1.State{}, &mirrorv1.Live{}
	m := map[keyspace.Leaf]proto.Message{keyspace.Owner: owner, keyspace.State: state, keyspace.Live: live}[c.Leaf]
	if err := proto.Unmarshal(value, m); err != nil {
		return registry.Invalidf("value", "decode %s: %w", c.Leaf, err)
	}
	switch c.Leaf {
	case keyspace.Owner:
		c.Owner = owner
	case keyspace.State:
		c.State = state
	case keyspace.Live:
		c.Live = live
	}
	return nil
}
