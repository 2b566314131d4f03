package test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/aether-federation/aether/internal/etcdtest"
	"github.com/aether-federation/aether/registry/keyspace"
)

// TestTwoRegions registers the same IP in two regions and changes one of them.
func TestTwoRegions(t *testing.T) {
	regions := fleet(t, "a", "b")
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")

	a.register("hello", "10.0.0.1", 1001)
	b.register("hello", "10.0.0.1", 2001)
	for _, r := range []*registrar{a, b} {
		r.awaitEndpoints("hello", "a/a1 10.0.0.1:1001", "b/b1 10.0.0.1:2001")
		r.awaitState("/v1/regions", map[*registrar]string{a: "b", b: "a"}[r], "live")
	}

	a.register("hello", "10.0.0.1", 1002)
	for _, r := range []*registrar{a, b} {
		r.awaitEndpoints("hello", "a/a1 10.0.0.1:1002", "b/b1 10.0.0.1:2001")
	}

	a.aether("unregister", "hello", "10.0.0.1")
	for _, r := range []*registrar{a, b} {
		r.awaitEndpoints("hello", "b/b1 10.0.0.1:2001")
	}
	if out := b.aether("endpoints", "hello", "-o", "json"); !strings.Contains(out, `"region": "b"`) || strings.Contains(out, `"region": "a"`) {
		t.Errorf("aether endpoints says %s", out)
	}
	a.awaitState("/v1/peers", "b", "live")
	a.aether("status")
}

// TestOldKeysAreMirroredVerbatim starts over an etcd that holds keys already,
// and one that is no endpoint.
func TestOldKeysAreMirroredVerbatim(t *testing.T) {
	regions := fleet(t, "a", "b")
	own, peer := regions[0].etcd.Client(t), regions[1].etcd.Client(t)
	odd := keyspace.RegionPrefix("a") + "clusters/a1/not-an-endpoint"
	if _, err := own.Put(t.Context(), odd, "\xff\x00opaque"); err != nil {
		t.Fatal(err)
	}
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	a.register("hello", "10.0.0.1", 1001)
	b.awaitEndpoints("hello", "a/a1 10.0.0.1:1001")

	mirrored := keys(t, peer, odd)
	if len(mirrored) != 1 || mirrored[0].value != "\xff\x00opaque" {
		t.Fatalf("the peer holds %v, want the key with its value", mirrored)
	}
	for _, k := range keys(t, peer, keyspace.RegionPrefix("a")) {
		if k.lease == 0 {
			t.Errorf("%s is on no lease", k.key)
		}
	}
	for _, r := range []*registrar{a, b} {
		if !strings.Contains(r.metrics(), "aether_registrar_unparsable_total 1\n") {
			t.Error("what does not parse is not counted")
		}
	}
}

// TestThreeRegionsWithoutLoop: what is mirrored is not mirrored on. Each key is
// written once in each etcd.
func TestThreeRegionsWithoutLoop(t *testing.T) {
	regions := fleet(t, "a", "b", "c")
	var registrars []*registrar
	var want []string
	for i, r := range regions {
		p := r.registrar(t, r.name+"1")
		p.register("hello", "10.0.0.1", 1001+i)
		registrars = append(registrars, p)
		want = append(want, fmt.Sprintf("%s/%s1 10.0.0.1:%d", r.name, r.name, 1001+i))
	}
	for _, p := range registrars {
		p.awaitEndpoints("hello", want...)
	}
	// Another round: a loop would have written the first keys again before it.
	for i, p := range registrars {
		p.register("bye", "10.0.0.1", 2001+i)
	}
	for _, p := range registrars {
		eventually(t, "bye is everywhere", func() bool { return len(p.endpoints("bye")) == len(regions) })
	}
	for _, r := range regions {
		all := keys(t, r.etcd.Client(t), keyspace.RegionsPrefix)
		if len(all) != 2*len(regions) {
			t.Errorf("region %s holds %d keys, want %d", r.name, len(all), 2*len(regions))
		}
		for _, k := range all {
			if k.version != 1 {
				t.Errorf("region %s: %s was written %d times", r.name, k.key, k.version)
			}
		}
	}
}

// TestSecondRegistrarTakesOver ends the registrar that mirrors. Its peer sees
// neither a delete nor a put but for what changed.
func TestSecondRegistrarTakesOver(t *testing.T) {
	t.Run("killed", func(t *testing.T) { takeOver(t, (*registrar).kill) })
	t.Run("stopped", func(t *testing.T) {
		takeOver(t, func(p *registrar) {
			if code := p.stop(); code != 0 {
				t.Errorf("exit code %d after SIGTERM, want 0", code)
			}
		})
	})
}

func takeOver(t *testing.T, end func(*registrar)) {
	regions := fleet(t, "a", "b")
	first, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	for i := range 10 {
		first.register("hello", fmt.Sprintf("10.0.0.%d", i+1), 1001)
	}
	eventually(t, "the peer serves all", func() bool { return len(b.endpoints("hello")) == 10 })
	second := regions[0].registrar(t, "a2")
	second.register("hello", "10.0.0.1", 2001)
	eventually(t, "the peer serves both clusters", func() bool { return len(b.endpoints("hello")) == 11 })
	first.awaitState("/v1/peers", "b", "live")

	peer := regions[1].etcd.Client(t)
	before := keys(t, peer, keyspace.RegionPrefix("a"))
	ended := time.Now()
	end(first)
	second.awaitState("/v1/peers", "b", "live")
	second.register("marker", "10.0.0.1", 3001)
	b.awaitEndpoints("marker", "a/a2 10.0.0.1:3001")
	for lease := range leases(before) {
		eventually(t, "the successor renews each lease", func() bool { return renewedSince(t, peer, lease, ended) })
	}

	after := slices.DeleteFunc(keys(t, peer, keyspace.RegionPrefix("a")), func(k stored) bool {
		return strings.Contains(k.key, "/services/marker/")
	})
	if !slices.Equal(before, after) {
		t.Errorf("the peer held\n%v\nand after the takeover\n%v", before, after)
	}
}

func leases(keys []stored) map[clientv3.LeaseID]bool {
	out := map[clientv3.LeaseID]bool{}
	for _, k := range keys {
		out[k.lease] = true
	}
	return out
}

// renewedSince reports whether a lease has more time left than it could have
// without a renewal after then. etcd rounds to a second.
func renewedSince(t *testing.T, c *clientv3.Client, lease clientv3.LeaseID, then time.Time) bool {
	t.Helper()
	left, err := c.TimeToLive(t.Context(), lease)
	if err != nil {
		t.Fatal(err)
	}
	most := time.Duration(left.GrantedTTL)*time.Second - time.Since(then)
	return time.Duration(left.TTL)*time.Second > most+time.Second
}

// TestRegionLostAndBack kills a region's registrar and etcd. The other region
// withdraws it in one step and within its time, and shows it again when it is
// back.
func TestRegionLostAndBack(t *testing.T) {
	const endpoints = 20
	regions := fleet(t, "a", "b")
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	b.register("hello", "10.0.0.1", 2001)
	for i := range endpoints {
		a.register("hello", fmt.Sprintf("10.0.0.%d", i+1), 1001)
	}
	eventually(t, "b serves both regions", func() bool { return len(b.endpoints("hello")) == endpoints+1 })
	peer := regions[1].etcd.Client(t)
	own := keys(t, peer, keyspace.RegionPrefix("b"))

	a.kill()
	regions[0].etcd.Kill()
	killed := time.Now()
	eventually(t, "b serves its own alone", func() bool {
		n := len(b.endpoints("hello"))
		if n != endpoints+1 && n != 1 {
			t.Fatalf("b serves %d endpoints: region a is neither whole nor gone", n)
		}
		return n == 1
	})
	took := time.Since(killed)
	t.Logf("withdrawn %v after the kill, with a TTL of %v", took, leaseTTL)
	// The promise counts from the last keepalive, which came before the kill by
	// about a tenth of the TTL, or a bit more on a busy machine.
	if took > leaseTTL+2*time.Second || took < leaseTTL*7/10 {
		t.Errorf("withdrawn after %v, want about %v and at most 2s more", took, leaseTTL)
	}
	b.awaitState("/v1/regions", "a", "lapsed")
	eventually(t, "a's keys have left b's etcd", func() bool { return len(keys(t, peer, keyspace.RegionPrefix("a"))) == 0 })

	regions[0].etcd.Restart()
	a.start()
	eventually(t, "b serves both regions again", func() bool { return len(b.endpoints("hello")) == endpoints+1 })
	b.awaitState("/v1/regions", "a", "live")
	if now := keys(t, peer, keyspace.RegionPrefix("b")); !slices.Equal(own, now) {
		t.Errorf("b's own keys were\n%v\nand are\n%v", own, now)
	}
}

// TestLocalEtcdOutage: reads go on with the last known view, for longer than any
// TTL, and say how old it is. Writes fail, and work again afterwards.
func TestLocalEtcdOutage(t *testing.T) {
	regions := fleet(t, "a", "b")
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	a.register("hello", "10.0.0.1", 1001)
	b.register("hello", "10.0.0.1", 2001)
	both := []string{"a/a1 10.0.0.1:1001", "b/b1 10.0.0.1:2001"}
	b.awaitEndpoints("hello", both...)

	regions[1].etcd.Kill()
	b.awaitState("/v1/regions", "a", "stale")
	eventually(t, "the view is older than the TTL and its margin", func() bool {
		if got := b.endpoints("hello"); !slices.Equal(got, both) {
			t.Fatalf("without its etcd b serves %v, want %v", got, both)
		}
		age, err := time.ParseDuration(b.standing("/v1/regions", "a").Age)
		return err == nil && age > leaseTTL+3*time.Second
	})
	if r := aether(t, "register", "hello", "10.0.0.2", "--port", "http=1", "--registrar", b.grpc); r.code != 3 || strings.Contains(r.stderr, "is it running there") {
		t.Errorf("register without etcd: exit code %d, %s; want 3 and what the registrar says", r.code, r.stderr)
	}
	if r := aether(t, "status", "--registrar", b.grpc); r.code != 1 || !strings.Contains(r.stderr, "region b: own etcd has not answered for") {
		t.Errorf("status without etcd: exit code %d, %s; want 1 and that the own etcd is away", r.code, r.stderr)
	}

	regions[1].etcd.Restart()
	b.awaitState("/v1/regions", "a", "live")
	b.register("hello", "10.0.0.1", 2002)
	b.awaitEndpoints("hello", "a/a1 10.0.0.1:1001", "b/b1 10.0.0.1:2002")
	a.awaitEndpoints("hello", "a/a1 10.0.0.1:1001", "b/b1 10.0.0.1:2002")
}

// TestSilentPeerDelaysNobody starts with a peer whose connections hang.
func TestSilentPeerDelaysNobody(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	regions := fleet(t, "a", "b")
	regions[0].peers = append(regions[0].peers, "silent="+silent.Addr().String())
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	a.register("hello", "10.0.0.1", 1001)
	b.awaitEndpoints("hello", "a/a1 10.0.0.1:1001")
	a.awaitState("/v1/peers", "silent", "connecting")
	if r := aether(t, "status", "--registrar", a.grpc); r.code != 1 || !strings.Contains(r.stderr, "silent") {
		t.Errorf("status: exit code %d, %s; want 1 and the peer's name", r.code, r.stderr)
	}
}

// TestEmbeddedEtcd keeps its data over a restart, and for its own region.
func TestEmbeddedEtcd(t *testing.T) {
	p := startRegistrar(t, "--data-dir", t.TempDir(), "--embedded-etcd-client-url", "http://"+etcdtest.FreeAddress(t))
	p.register("hello", "10.0.0.1", 1001)
	p.awaitEndpoints("hello", "local/local 10.0.0.1:1001")
	if code := p.stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0", code)
	}
	p.start()
	p.awaitEndpoints("hello", "local/local 10.0.0.1:1001")
	p.stop()
	if r := aether(t, append(p.args, "--region", "b")...); r.code != 1 || !strings.Contains(r.stderr, "--region local") {
		t.Errorf("the data of another region: exit code %d, %q; want 1 and its name", r.code, r.stderr)
	}
}
