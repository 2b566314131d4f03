package replicator

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/registry/keyspace"
)

// Outcome is the result of one check.
type Outcome string

// The outcomes of a check.
const (
	// OutcomeOK: it is as it should be.
	OutcomeOK Outcome = "ok"
	// OutcomeWarning: it works, and should be seen to.
	OutcomeWarning Outcome = "warning"
	// OutcomeProblem: mirroring will not work, or others are not safe from it.
	OutcomeProblem Outcome = "problem"
	// OutcomeUnknown: it could not be told.
	OutcomeUnknown Outcome = "unknown"
)

// Finding is the result of one check.
type Finding struct {
	Check   string  `json:"check"`
	Outcome Outcome `json:"outcome"`
	Detail  string  `json:"detail,omitempty"`
}

// CheckResult is what Check found out about one peer.
type CheckResult struct {
	Peer string `json:"peer"`
	// Store is the ID of the peer's etcd, as far as it could be read.
	Store    string    `json:"store,omitempty"`
	Findings []Finding `json:"findings"`
	// RoundTrip is that of a linearizable read, the shortest of a few.
	RoundTrip time.Duration `json:"-"`
}

// Has reports whether any finding has that outcome.
func (r CheckResult) Has(o Outcome) bool {
	for _, f := range r.Findings {
		if f.Outcome == o {
			return true
		}
	}
	return false
}

// checkTimeout bounds each request of a check.
const checkTimeout = 5 * time.Second

// Check finds out, from the side of an origin, whether it can mirror to a peer, and
// whether it can do no more than that: it tries. What must be allowed is done with
// a key of its own below /aether/v1/mirrors/<origin>/, which it removes again. What
// must be refused is tried in transactions that are refused for it, or else come
// to nothing, because what they compare is never true: no key of anybody is
// touched, whatever comes out. own, if not nil, is a client of the origin's etcd,
// which the peer's must not be.
func Check(ctx context.Context, origin string, peer Peer, own *clientv3.Client) CheckResult {
	c := &prober{origin: origin, peer: peer, own: own}
	c.result.Peer = peer.Region
	ctx = clientv3.WithRequireLeader(ctx)
	if c.reach(ctx) {
		defer func() { _ = c.client.Close() }() // nothing is under way any more
		for _, check := range []func(context.Context){
			c.authentication, c.versions, c.stores, c.reads, c.lease, c.refusals,
		} {
			check(ctx)
		}
	}
	return c.result
}

type prober struct {
	origin string
	peer   Peer
	own    *clientv3.Client
	client *clientv3.Client
	// open: the peer asks nobody who he is.
	open   bool
	result CheckResult
}

func (c *prober) find(check string, o Outcome, format string, args ...any) {
	c.result.Findings = append(c.result.Findings, Finding{check, o, fmt.Sprintf(format, args...)})
}

// fail enters what an error that a check met with means.
func (c *prober) fail(check string, err error) {
	outcome, detail := OutcomeUnknown, err.Error()
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		outcome, detail = OutcomeProblem, fmt.Sprintf("user %q may not: have 'aether peer bootstrap --origin %s' run on this etcd", c.peer.Username, c.origin)
	case errors.Is(err, rpctypes.ErrAuthFailed):
		outcome, detail = OutcomeProblem, fmt.Sprintf("user %q: wrong name or password", c.peer.Username)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		outcome, detail = OutcomeProblem, "the etcd wants a user: give a name and password, or a client certificate"
	case errors.Is(err, rpctypes.ErrNoSpace):
		outcome, detail = OutcomeProblem, errFull.Error()
	case isTLS(err):
		outcome = OutcomeProblem
	}
	c.find(check, outcome, "%s", detail)
}

// isTLS reports whether a connection failed because the two sides do not trust each
// other; gRPC tells it by its text alone.
func isTLS(err error) bool {
	text := err.Error()
	return strings.Contains(text, "handshake failed") || strings.Contains(text, "tls: ") || strings.Contains(text, "x509: ")
}

// roundTrips are timed.
const roundTrips = 5

// reach connects and measures the round trip.
func (c *prober) reach(ctx context.Context) bool {
	current, _, err := c.peer.current()
	if err != nil {
		c.find("credentials", OutcomeProblem, "%v", err)
		return false
	}
	c.peer = current
	if c.client, err = dial(ctx, current, checkTimeout); err != nil {
		c.fail("reach", Diagnose(ctx, current, err))
		return false
	}
	for range roundTrips {
		begun := time.Now()
		err := c.call(ctx, func(ctx context.Context) error {
			_, err := c.client.Get(ctx, keyspace.StoreKey)
			return err
		})
		if err != nil && !errors.Is(err, rpctypes.ErrPermissionDenied) {
			c.fail("reach", Diagnose(ctx, current, err))
			_ = c.client.Close() // it never was of use
			return false
		}
		if took := time.Since(begun); c.result.RoundTrip == 0 || took < c.result.RoundTrip {
			c.result.RoundTrip = took
		}
	}
	c.find("reach", OutcomeOK, "%s, round trip %v", strings.Join(c.peer.Endpoints, ","), c.result.RoundTrip.Round(100*time.Microsecond))
	return true
}

func (c *prober) call(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return f(ctx)
}

func (c *prober) authentication(ctx context.Context) {
	var on bool
	err := c.call(ctx, func(ctx context.Context) (err error) {
		on, err = authEnabled(ctx, c.client)
		return err
	})
	switch {
	case err != nil:
		c.fail("authentication", err)
	case !on:
		c.open = true
		c.find("authentication", OutcomeProblem, "off: anybody who reaches this etcd may write anything")
	case c.peer.Username == "root":
		c.find("authentication", OutcomeProblem, "on, and root is no user for a mirror: it may do everything")
	case c.peer.Username == "":
		c.find("authentication", OutcomeOK, "on, by client certificate")
	case c.peer.TLS == nil && !strings.HasPrefix(c.peer.Endpoints[0], "https://"):
		c.find("authentication", OutcomeWarning, "on, as user %q; the password goes over the link in plain text: use TLS", c.peer.Username)
	default:
		c.find("authentication", OutcomeOK, "on, as user %q", c.peer.Username)
	}
}

func (c *prober) versions(ctx context.Context) {
	for _, endpoint := range c.peer.Endpoints {
		var is *clientv3.StatusResponse
		err := c.call(ctx, func(ctx context.Context) (err error) {
			is, err = c.client.Status(ctx, endpoint)
			return err
		})
		if err != nil {
			c.fail("version of "+endpoint, err)
			continue
		}
		upgrade, err := tooOldToIsolate(is.Version)
		switch {
		case err != nil:
			c.find("version of "+endpoint, OutcomeUnknown, "%v", err)
		case upgrade != "":
			c.find("version of "+endpoint, OutcomeWarning, "%v", oldError(endpoint, is.Version, upgrade))
		default:
			c.find("version of "+endpoint, OutcomeOK, "etcd %s", is.Version)
		}
	}
}

// stores checks that the peer's etcd is another one than the own.
func (c *prober) stores(ctx context.Context) {
	var theirs, own store
	err := c.call(ctx, func(ctx context.Context) (err error) {
		theirs, err = readStore(ctx, c.client)
		return err
	})
	if err != nil {
		c.fail("store", err)
		return
	}
	c.result.Store = theirs.id
	if c.own != nil {
		if err := c.call(ctx, func(ctx context.Context) (err error) {
			own, err = readStore(ctx, c.own)
			return err
		}); err != nil {
			c.find("store", OutcomeUnknown, "own etcd: %v", err)
			return
		}
	}
	switch {
	case theirs.id == own.id:
		c.find("store", OutcomeProblem, "%s is the own region's etcd: correct the peer's endpoints", theirs.id)
	case theirs.substitute:
		c.find("store", OutcomeWarning, "%s stands in: %s cannot be read, or is not there; have 'aether peer bootstrap' run there", theirs.id, keyspace.StoreKey)
	case c.own == nil:
		c.find("store", OutcomeOK, "%s; not compared with the own etcd's, which was not given", theirs.id)
	default:
		c.find("store", OutcomeOK, "%s, and the own etcd is %s", theirs.id, own.id)
	}
}

// reads checks that the mirror's own prefixes can be read.
func (c *prober) reads(ctx context.Context) {
	for _, prefix := range []string{keyspace.RegionPrefix(c.origin), keyspace.MirrorPrefix(c.origin)} {
		err := c.call(ctx, func(ctx context.Context) error {
			_, err := c.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
			return err
		})
		c.allowed("read "+prefix, err)
	}
}

func (c *prober) allowed(check string, err error) {
	if err != nil {
		c.fail(check, err)
		return
	}
	c.find(check, OutcomeOK, "allowed")
}

// CheckStores enters, into the results of several peers, which of them share an
// etcd.
func CheckStores(results []CheckResult) {
	of := map[string]string{}
	for i := range results {
		r := &results[i]
		if other, ok := of[r.Store]; ok && r.Store != "" {
			r.Findings = append(r.Findings, Finding{"store", OutcomeProblem, fmt.Sprintf("%s is peer %s's too: correct the endpoints", r.Store, other)})
		}
		of[r.Store] = r.Peer
	}
}
