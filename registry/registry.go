package registry

import "context"

// Revision names a state of a registry. It is opaque: two equal revisions from
// one implementation mean equal states, and nothing else can be told from two.
type Revision string

// Query says which endpoints a reader wants.
type Query struct {
	// Services to include, by exact name. Empty: all.
	Services []string
}

// Wants reports whether q includes service.
func (q Query) Wants(service string) bool {
	if len(q.Services) == 0 {
		return true
	}
	for _, s := range q.Services {
		if s == service {
			return true
		}
	}
	return false
}

// Snapshot is a registry's answer to List.
type Snapshot struct {
	// Endpoints in the order of [Key.Compare].
	Endpoints []Endpoint
	Revision  Revision
}

// Registry is the contract of everything that stores or serves endpoints. The
// suite in package registrytest states it as tests.
//
// Errors are or wrap an [Error]; use [KindOf] to decide what to do next.
type Registry interface {
	// Register adds endpoints or replaces those with the same key, in the
	// partition (region and cluster) that this registry writes. An endpoint
	// with an empty Region or Cluster gets that partition's; one that names
	// another is Invalid. It returns once all are durable.
	//
	// Every endpoint is validated before the first is written, and a key twice
	// in one call is Invalid. A key held by another node is a Conflict, and then
	// nothing of its batch of at most [MaxBatch] endpoints is written; endpoints
	// of other batches may have been. Repeating a call is harmless. Registering
	// what is there already writes nothing.
	Register(ctx context.Context, endpoints []Endpoint) (Revision, error)

	// Unregister removes endpoints of the same partition and returns how many
	// existed. A claim that names a node removes the endpoint only if that node
	// holds it or nobody does; otherwise it is a Conflict, with nothing of its
	// batch removed. Removing what does not exist is not an error.
	Unregister(ctx context.Context, claims []Claim) (removed int, rev Revision, err error)

	// List returns the endpoints that q asks for.
	List(ctx context.Context, q Query) (Snapshot, error)

	// Watch calls fn, from one goroutine, first with a Reset, then with a Put
	// for each endpoint that q asks for, then with a Synced, then with each
	// change in order, until ctx ends or fn returns an error, and returns that
	// error. A later Reset voids all that was told before and starts over. No
	// change after a snapshot is left out; several changes of one key within a
	// moment may arrive as the last of them.
	//
	// A reader whose fn is too slow may be cut off with SlowReader: it calls
	// Watch again. Unavailable too may be retried.
	Watch(ctx context.Context, q Query, fn func(Event) error) error
}

// MaxBatch is the number of endpoints that are written in one step, whole or not
// at all: etcd's default limit of operations per transaction.
const MaxBatch = 128

// Claim names an endpoint to remove, and on whose behalf.
type Claim struct {
	Key
	// Node on whose behalf; empty removes whoever holds it.
	Node string
}

// Outcome is what it took to make a node's endpoints equal to its report.
type Outcome struct {
	// Revision at which all of it is durable.
	Revision Revision
	// Written and Removed count what differed.
	Written, Removed int
	// Conflicts has an error for each endpoint that another node holds, by its
	// index in the report.
	Conflicts map[int]error
}

// EventKind says what an Event tells.
type EventKind uint8

const (
	// Reset: what was told before is void; a snapshot follows.
	Reset EventKind = iota + 1
	// Put: Endpoint is new or has changed.
	Put
	// Delete: the endpoint with this Key is gone; only Endpoint.Key is set.
	Delete
	// Synced: the snapshot is complete, at Revision.
	Synced
)

// String returns the kind's name in lower case.
func (k EventKind) String() string {
	switch k {
	case Reset:
		return "reset"
	case Put:
		return "put"
	case Delete:
		return "delete"
	case Synced:
		return "synced"
	default:
		return "unknown"
	}
}

// Event is one step in what a watcher is told.
type Event struct {
	Kind     EventKind
	Endpoint Endpoint
	// Revision is set with Synced, and with changes where it is known.
	Revision Revision
}
