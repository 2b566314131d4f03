package mirrors

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/election"
	"github.com/aether-federation/aether/registry/etcd"
	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/replicator"
)

const (
	// publishEvery is how soon others see that a mirror's state has changed.
	publishEvery = time.Second
	// republishAfter is how soon they see what changes all the time: each
	// publication moves the origin's revision, and with it the checkpoint.
	republishAfter = 10 * time.Second
	readTimeout    = 2 * time.Second
)

// publication is the value of a leader's election key: how its mirror is.
type publication struct {
	Peer *registryv1.Peer
	// Since is when the peer's state was entered; durations would be old when
	// they are read.
	Since time.Time
}

type publicationJSON struct {
	Peer  json.RawMessage `json:"peer"`
	Since time.Time       `json:"since"`
}

func (p publication) encode() (string, error) {
	peer, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(p.Peer)
	if err != nil {
		return "", fmt.Errorf("encode mirror's state: %w", err)
	}
	b, err := json.Marshal(publicationJSON{Peer: peer, Since: p.Since})
	if err != nil {
		return "", fmt.Errorf("encode mirror's state: %w", err)
	}
	return string(b), nil
}

func decode(value string) (publication, error) {
	var j publicationJSON
	if err := json.Unmarshal([]byte(value), &j); err != nil {
		return publication{}, fmt.Errorf("decode mirror's state: %w", err)
	}
	p := publication{Peer: &registryv1.Peer{}, Since: j.Since}
	// A newer leader may say more than is known here.
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(j.Peer, p.Peer); err != nil {
		return publication{}, fmt.Errorf("decode mirror's state: %w", err)
	}
	return p, nil
}

// at is the peer as an answer given now.
func (p publication) at(now time.Time) *registryv1.Peer {
	peer := proto.Clone(p.Peer).(*registryv1.Peer)
	peer.Since = durationpb.New(max(now.Sub(p.Since), 0))
	return peer
}

// notable is p without what changes all the time.
func (p publication) notable() *registryv1.Peer {
	peer := proto.Clone(p.Peer).(*registryv1.Peer)
	peer.Checkpoint = ""
	return peer
}

// publication returns how the mirror to a peer is, as its leader sees it.
func (m *Mirrors) publication(peer string) publication {
	for _, s := range m.replicator.Status() {
		if s.Region == peer {
			return publication{Peer: m.message(s), Since: s.Since}
		}
	}
	return publication{
		Peer:  &registryv1.Peer{Region: peer, Leader: m.name, State: string(replicator.StateConnecting)},
		Since: time.Now(),
	}
}

func (m *Mirrors) message(s replicator.PeerStatus) *registryv1.Peer {
	p := &registryv1.Peer{
		Region: s.Region, Leader: m.name, State: string(s.State), Lag: durationpb.New(s.Lag),
		Pending: uint32(s.Pending), Leases: uint32(s.Leases), Keys: uint32(s.Keys), LastError: lastError(s), Warnings: s.Warnings,
	}
	if s.Checkpoint > 0 {
		p.Checkpoint = strconv.FormatInt(s.Checkpoint, 10)
	}
	return p
}

// lastError is what still matters of a mirror's last error: nothing of one that the
// mirror has been live since.
func lastError(s replicator.PeerStatus) string {
	if s.State == replicator.StateLive && s.LastErrorAt.Before(s.Since) {
		return ""
	}
	return s.LastError
}

// publish keeps the value of the leader's key up to date until ctx ends.
func (m *Mirrors) publish(ctx context.Context, peer string, l *election.Leadership) error {
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	var last publication
	var lastAt time.Time
	for {
		now := m.publication(peer)
		if last.Peer == nil || worthTelling(last, now, time.Since(lastAt)) {
			if err := m.publishOnce(ctx, l, now); err == nil {
				last, lastAt = now, time.Now()
			} else if ctx.Err() == nil {
				m.cfg.Log.Debug("publish mirror's state", "peer", peer, "error", err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// worthTelling decides whether a publication replaces one of that age.
func worthTelling(last, now publication, age time.Duration) bool {
	return !proto.Equal(last.notable(), now.notable()) || age >= republishAfter && !proto.Equal(last.Peer, now.Peer)
}

func (m *Mirrors) publishOnce(ctx context.Context, l *election.Leadership, p publication) error {
	value, err := p.encode()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	return l.Publish(ctx, value)
}

// Peers returns how the mirrors of the region are, whoever leads them, in the
// order in which the peers were given. A mirror that nobody leads, or of which
// nothing can be learned, is standby without a leader; the last error says why.
func (m *Mirrors) Peers(ctx context.Context) ([]*registryv1.Peer, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	out := make([]*registryv1.Peer, 0, len(m.cfg.Peers))
	for _, p := range m.cfg.Peers {
		out = append(out, m.peer(ctx, p.Region))
	}
	return out, nil
}

func (m *Mirrors) peer(ctx context.Context, region string) *registryv1.Peer {
	if m.leads(region) {
		return m.publication(region).at(time.Now())
	}
	return Published(ctx, m.cfg.Source.Client(), m.cfg.Origin.Region, region)
}

// Published returns how the mirror of a region to a peer is, as its leader last
// told in the region's own etcd. A mirror that nobody leads, or of which nothing
// can be learned, is standby without a leader; the last error says why.
func Published(ctx context.Context, own *etcd.Client, region, peer string) *registryv1.Peer {
	nobody := &registryv1.Peer{Region: peer, State: string(replicator.StateStandby)}
	value, elected, err := election.Leader(ctx, own, keyspace.MirrorElectionPrefix(region, peer))
	switch {
	case err != nil:
		nobody.LastError = err.Error()
		return nobody
	case !elected:
		return nobody
	}
	p, err := decode(value)
	if err != nil {
		nobody.LastError = err.Error()
		return nobody
	}
	return p.at(time.Now())
}
