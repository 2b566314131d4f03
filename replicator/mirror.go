package replicator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"

	mirrorv1 "github.com/aether-federation/aether/api/aether/mirror/v1"
	"github.com/aether-federation/aether/registry/keyspace"
)

const (
	// etcd closes connections that are pinged more often than every 5 s.
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second
	// maxMessage is above any request that an etcd accepts, so that the peer and
	// not the client's limit decides what is too large.
	maxMessage = 64 << 20
)

// mirror is the loop for one peer. What a session learns is in its fields until
// the next one.
type mirror struct {
	*Replicator
	log    *slog.Logger
	origin string
	prefix string
	source *clientv3.Client
	peer   Peer
	// version is that of the credentials that client was made with.
	version string
	lead    Leadership
	holder  string
	client  *clientv3.Client
	status  *status
	meter   meter
	// own and theirs are the stores of the origin and the peer, as last seen. One
	// that is set back behind that was restored from a backup.
	own, theirs store
	// restored says which side was, until the mirror has been rebuilt: the label
	// of the resync metric.
	restored string
	// interrupted: a session came before.
	interrupted bool
	// last is the last change of the origin that a session has seen.
	last *clientv3.Event
	// repair: an operator wants the mirror rebuilt.
	repair bool
	// lost: most of the mirror's keys or leases were found gone.
	lost bool
}

func (r *Replicator) mirror(peer Peer, lead Leadership) (*mirror, error) {
	origin, err := originOf(r.Source.OwnPrefix())
	if err != nil {
		return nil, err
	}
	if err := validatePeers([]Peer{peer}, origin); err != nil {
		return nil, err
	}
	return &mirror{
		Replicator: r,
		log:        r.Log.With("component", "replicator", "region", origin, "peer", peer.Region),
		origin:     origin,
		prefix:     r.Source.OwnPrefix(),
		source:     r.Source.Client(),
		peer:       peer,
		lead:       lead,
		holder:     r.holder(),
		status:     r.statusOf(peer.Region),
		meter:      r.metrics.of(peer.Region),
	}, nil
}

// run holds one session after the other until ctx ends or the mirror is taken
// over.
func (m *mirror) run(ctx context.Context) error {
	defer m.unclaim(m.peer.Region)
	defer m.disconnect()
	defer m.status.enter(StateStandby, nil)
	pause := m.firstPause()
	for {
		begun := time.Now()
		err := m.connectAndMirror(ctx)
		if ctx.Err() != nil {
			return nil
		}
		m.meter.sessionEnded(cause(err))
		if errors.Is(err, errCredentials) || errors.Is(err, errRepair) {
			m.log.Info("mirroring anew", "reason", err)
			continue
		}
		m.status.fail(err)
		m.lost = m.lost || errors.Is(err, errLeasesLost)
		if errors.Is(err, ErrFenced) || errors.Is(err, errNotLeading) {
			m.log.Warn("mirroring stopped", "error", err)
			return err
		}
		if time.Since(begun) > m.ttl() {
			pause = m.firstPause()
		}
		m.log.Warn("mirroring interrupted, trying again", "error", err, "pause", pause)
		if !sleep(ctx, pause) {
			return nil
		}
		pause = min(2*pause, maxResyncBackoff)
	}
}

// errNotLeading ends a mirror whose leadership could not be proven.
var errNotLeading = errors.New("leadership is not proven")

func (m *mirror) firstPause() time.Duration {
	if m.ResyncBackoff > 0 {
		return m.ResyncBackoff
	}
	return defaultResyncBackoff
}

// sleep waits for d, give or take a quarter, and reports false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	d += time.Duration((rand.Float64() - 0.5) / 2 * float64(d))
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (m *mirror) connectAndMirror(ctx context.Context) error {
	if err := m.connect(ctx); err != nil {
		return m.explain(Diagnose(ctx, m.peer, err))
	}
	if m.interrupted {
		m.avoidSilent(ctx)
	}
	m.interrupted = true
	ctx = clientv3.WithRequireLeader(ctx)
	s, err := m.takeOver(ctx)
	if err != nil {
		return m.explain(Diagnose(ctx, m.peer, err))
	}
	return m.explain(s.run(ctx))
}

// explain adds to an error what the operator can do about it.
func (m *mirror) explain(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Errorf("user %q at peer %s needs readwrite on %s and %s, and read on %s: %w",
			m.peer.Username, m.peer.Region, m.prefix, keyspace.MirrorPrefix(m.origin), keyspace.StoreKey, err)
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("user %q at peer %s: correct its name or password: %w", m.peer.Username, m.peer.Region, err)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("peer %s wants a user: give a name and password, or a client certificate: %w", m.peer.Region, err)
	default:
		return err
	}
}

// connect makes the client, once for the peer's credentials; it reconnects by
// itself afterwards, and outlives a session for its last keepalive.
func (m *mirror) connect(ctx context.Context) error {
	if err := m.refresh(); err != nil {
		return err
	}
	if m.client != nil {
		return nil
	}
	m.status.enter(StateConnecting, nil)
	options := []grpc.DialOption{grpc.WithChainUnaryInterceptor(sendOnce)}
	if m.intercept != nil {
		options = append(options, grpc.WithChainUnaryInterceptor(m.intercept))
	}
	client, err := dial(ctx, m.peer, m.dialTimeout(), options...)
	if err != nil {
		return err
	}
	m.client = client
	return nil
}

// sendOnce keeps etcd's client from sending a transaction a second time. It does
// so, against its own policy for writes, when the answer is DeadlineExceeded or
// Canceled although the call's context is not: the first may then land after the
// second was acknowledged, and after what was sent behind it.
func sendOnce(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, opts...)
	if _, txn := req.(*pb.TxnRequest); !txn || ctx.Err() != nil {
		return err
	}
	switch code := grpcstatus.Code(err); code {
	case codes.DeadlineExceeded, codes.Canceled:
		return grpcstatus.Errorf(codes.Unknown, "%v from peer: %v", code, err)
	default:
		return err
	}
}

func (m *mirror) disconnect() {
	if m.client == nil {
		return
	}
	if err := m.client.Close(); err != nil && !errors.Is(err, context.Canceled) {
		m.log.Debug("close peer's client", "error", err)
	}
	m.client = nil
}

func (m *mirror) relative(key string) string { return key[len(m.prefix):] }

// takeOver is the first part of a session: which stores are these, who owns the
// mirror, and the fence.
func (m *mirror) takeOver(ctx context.Context) (*session, error) {
	step, cancel := context.WithTimeout(ctx, m.callTimeout())
	defer cancel()
	if err := m.identifyBoth(step); err != nil {
		return nil, err
	}
	found, err := m.read(step)
	if err != nil {
		return nil, err
	}
	if err := m.refuseRival(ctx, found); err != nil {
		return nil, err
	}
	step, cancel = context.WithTimeout(ctx, m.callTimeout())
	defer cancel()
	if err := m.verifyLeadership(step); err != nil {
		return nil, err
	}
	f, err := m.takeFence(step, found.ownerRev)
	if err != nil {
		return nil, err
	}
	return newSession(m, found, f), nil
}

// identifyBoth finds out which stores there are at both ends now.
func (m *mirror) identifyBoth(ctx context.Context) error {
	own, err := identify(ctx, m.source)
	if err != nil {
		return fmt.Errorf("identify own etcd: %w", err)
	}
	theirs, err := identify(ctx, m.client)
	if err != nil {
		return fmt.Errorf("identify etcd of peer %s at %s: %w", m.peer.Region, strings.Join(m.peer.Endpoints, ","), err)
	}
	if err := follows("own etcd", m.own, own); err != nil && m.own.id == own.id {
		m.log.Warn("own etcd was set back", "error", err)
		m.restored = reasonOriginRestored
	}
	if err := follows("peer's etcd", m.theirs, theirs); err != nil && m.theirs.id == theirs.id && m.restored == "" {
		m.log.Warn("peer's etcd was set back", "error", err)
		m.restored = reasonPeerRestored
	}
	if own.id != m.own.id {
		m.last = nil // another store has another history
	}
	m.own, m.theirs = own, theirs
	if err := m.refuseStore(ctx); err != nil {
		return err
	}
	return m.checkHistory(ctx)
}

// refuseStore refuses a peer whose etcd is the own one or another peer's.
func (m *mirror) refuseStore(ctx context.Context) error {
	same := m.theirs.id == m.own.id
	if m.theirs.substitute && !same {
		// All that is known is the cluster ID, which two different stores may
		// share: better to refuse one that is right than to lease the own keys.
		own, err := standIn(ctx, m.source)
		if err != nil {
			return fmt.Errorf("identify own etcd: %w", err)
		}
		same = own.id == m.theirs.id
	}
	if same {
		return fmt.Errorf("peer %s: its endpoints %s reach the own region's etcd (store %s): correct them, or let the mirror's user read /aether/v1/store there: %w",
			m.peer.Region, strings.Join(m.peer.Endpoints, ","), m.theirs.id, ErrRefused)
	}
	if other := m.claim(m.theirs.id, m.peer.Region); other != "" {
		return fmt.Errorf("peer %s: its endpoints %s reach the etcd of peer %s (store %s): correct them: %w",
			m.peer.Region, strings.Join(m.peer.Endpoints, ","), other, m.theirs.id, ErrRefused)
	}
	return nil
}

func (m *mirror) verifyLeadership(ctx context.Context) error {
	if m.lead != nil {
		if err := m.lead.Verify(ctx); err != nil {
			return fmt.Errorf("%w: %w", errNotLeading, err)
		}
		return nil
	}
	if _, err := m.source.Get(ctx, m.prefix, clientv3.WithLimit(1)); err != nil {
		return fmt.Errorf("read own etcd: %w", err)
	}
	return nil
}

// refuseRival refuses a mirror that is kept alive from another store, or by this
// origin under another peer's name.
func (m *mirror) refuseRival(ctx context.Context, f found) error {
	var what string
	switch owner := f.owner; {
	case owner.GetOriginStore() == "" || f.liveLease == 0:
		return nil
	case owner.GetOriginStore() != m.own.id:
		what = fmt.Sprintf("two etcds claim region %s: its mirror at peer %s is kept alive by %s from store %s, and this one is store %s; stop one of the two",
			m.origin, m.peer.Region, owner.GetHolder(), owner.GetOriginStore(), m.own.id)
	case owner.GetPeer() != m.peer.Region:
		what = fmt.Sprintf("peer %s: its endpoints %s reach the etcd that this region mirrors to as peer %s, by %s; correct them",
			m.peer.Region, strings.Join(m.peer.Endpoints, ","), owner.GetPeer(), owner.GetHolder())
	default:
		return nil
	}
	renewed, err := m.renewedMeanwhile(ctx, f.liveLease, f.live)
	if err != nil {
		return err
	}
	if renewed {
		return fmt.Errorf("%s: %w", what, ErrRefused)
	}
	return nil
}

// renewedMeanwhile watches a lease for one and a half of its holder's renewal
// intervals and reports whether somebody renews it.
func (m *mirror) renewedMeanwhile(ctx context.Context, id clientv3.LeaseID, live *mirrorv1.Live) (bool, error) {
	// Seconds are what etcd tells of a lease, so that a renewal shows as a rise or,
	// when they come every second or faster, as a fall that is too small.
	wait := time.Duration(live.GetLeaseTtl())*time.Second/renewalsPerTTL*3/2 + 2*time.Second
	begun, first := time.Now(), time.Duration(-1)
	var firstAt time.Time
	for time.Since(begun) < wait {
		asked := time.Now()
		seconds, err := m.timeToLive(ctx, id)
		left := time.Duration(seconds) * time.Second
		switch {
		case err != nil:
			return false, fmt.Errorf("read lease of another owner: %w", err)
		case left <= 0:
			return false, nil
		case first < 0:
			first, firstAt = left, time.Now()
		case left+asked.Sub(firstAt) >= first+time.Second:
			// Rounded down, it had less than first + 1 s at firstAt.
			return true, nil
		}
		if !sleep(ctx, time.Second/2) {
			return false, ctx.Err()
		}
	}
	return false, nil
}

// timeToLive returns the seconds that a lease on the peer has left, 0 or less
// when there is no such lease.
func (m *mirror) timeToLive(ctx context.Context, id clientv3.LeaseID) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, m.callTimeout())
	defer cancel()
	left, err := m.client.TimeToLive(ctx, id)
	if err != nil {
		return 0, err
	}
	return left.TTL, nil
}

// standBy waits until the mirror's live lease is no longer renewed, or ctx ends.
func (m *mirror) standBy(ctx context.Context) {
	defer m.disconnect()
	ctx = clientv3.WithRequireLeader(ctx)
	m.status.enter(StateStandby, ErrFenced)
	for sleep(ctx, m.ttl()/renewalsPerTTL) {
		if err := m.connect(ctx); err != nil {
			m.log.Debug("standing by", "error", err)
			continue
		}
		if !m.somebodyMirrors(ctx) {
			return
		}
	}
}

func (m *mirror) somebodyMirrors(ctx context.Context) bool {
	step, cancel := context.WithTimeout(ctx, m.callTimeout())
	defer cancel()
	found, err := m.read(step)
	if err != nil {
		m.log.Debug("standing by", "error", err)
		return true
	}
	if found.liveLease == 0 {
		return false
	}
	renewed, err := m.renewedMeanwhile(ctx, found.liveLease, found.live)
	return err != nil || renewed
}
