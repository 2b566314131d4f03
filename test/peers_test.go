package test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/aether-federation/aether/registry/keyspace"
)

// TestPeersWithUsers: bootstrap, check, mirror, verify and repair, as an operator
// does one after the other.
func TestPeersWithUsers(t *testing.T) {
	regions := fleet(t, "a", "b")
	a, b := regions[0], regions[1]
	dir := t.TempDir()
	root, secret := filepath.Join(dir, "root"), filepath.Join(dir, "a")
	write(t, root, "root's\n")
	write(t, secret, "old\n")
	bootstrap := []string{"peer", "bootstrap", "--origin", "a", "--etcd-endpoints", b.etcd.Endpoint(), "--password-file", secret}
	if r := aether(t, bootstrap...); r.code != 0 || !strings.Contains(r.stdout, "authentication is off") {
		t.Fatalf("bootstrap: exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	requireUser(t, b.etcd, "root's")
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{b.etcd.Endpoint()}, Username: "root", Password: "root's", Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })

	own := []string{"--region", "a", "--etcd-endpoints", a.etcd.Endpoint()}
	peer := []string{"--peer-etcd", "b=" + b.etcd.Endpoint(), "--peer-etcd-user", "b=a", "--peer-etcd-password-file", "b=" + secret}
	both := append(own, peer...)
	with := func(command ...string) []string { return append(command, both...) }
	if r := aether(t, with("peer", "check")...); r.code != 0 || !strings.Contains(r.stdout, "no write to /aether/v1/regions/b/") {
		t.Errorf("check: exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	n := startRegistrar(t, append(both, "--cluster-name", "a1", "--lease-ttl", "20s")...)
	n.register("hello", "10.0.0.1", 1001)
	n.awaitState("/v1/peers", "b", "live")
	verify := func() result { return aether(t, with("mirror", "verify", "-o", "json")...) }
	eventually(t, "the mirror is equal", func() bool { return verify().code == 0 })
	if r := aether(t, "mirror", "status", "--registrar", n.grpc); r.code != 0 || !strings.Contains(r.stdout, "live") {
		t.Errorf("status: exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}

	// The password changes under the mirror.
	write(t, secret, "new\n")
	if r := aether(t, append(bootstrap, "--etcd-user", "root", "--etcd-password-file", root)...); r.code != 0 {
		t.Fatalf("bootstrap again: exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	n.register("hello", "10.0.0.2", 1002)
	eventually(t, "the mirror is equal with the new password", func() bool {
		r := verify()
		return r.code == 0 && strings.Contains(r.stdout, `"peer_keys": 2`)
	})

	// Somebody writes into the mirror.
	if _, err := admin.Put(t.Context(), keyspace.RegionPrefix("a")+"stray", "x"); err != nil {
		t.Fatal(err)
	}
	var found struct {
		Equal bool
		Extra int
	}
	r := verify()
	if err := json.Unmarshal([]byte(r.stdout), &found); err != nil || r.code != 1 || found.Equal || found.Extra != 1 {
		t.Errorf("verify: exit code %d, %s%s, %v", r.code, r.stdout, r.stderr, err)
	}
	if r := aether(t, with("mirror", "repair", "--peer", "b")...); r.code != 1 || !strings.Contains(r.stderr, "delete 1") {
		t.Errorf("repair: exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	if r := aether(t, append([]string{"mirror", "repair", "--peer", "b", "--accept"}, own...)...); r.code != 0 {
		t.Errorf("repair --accept: exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	eventually(t, "the mirror is repaired", func() bool { return verify().code == 0 })
	b.etcd.Kill()
	if r := verify(); r.code != 3 {
		t.Errorf("verify without the peer: exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
	if r := aether(t, with("peer", "check")...); r.code != 3 {
		t.Errorf("check without the peer: exit code %d, %s%s", r.code, r.stdout, r.stderr)
	}
}

func TestBootstrapDryRun(t *testing.T) {
	r := aether(t, "peer", "bootstrap", "--origin", "a", "--no-password", "--dry-run", "--etcd-endpoints", "h:1")
	want := []string{
		"export ETCDCTL_ENDPOINTS=h:1",
		"etcdctl role add mirror-a",
		"etcdctl role grant-permission mirror-a read /aether/v1/store",
		"etcdctl role grant-permission mirror-a readwrite /aether/v1/regions/a/ /aether/v1/regions/a0",
		"etcdctl role grant-permission mirror-a readwrite /aether/v1/mirrors/a/ /aether/v1/mirrors/a0",
		"etcdctl user add a --no-password",
		"etcdctl user grant-role a mirror-a",
	}
	lines := strings.Split(r.stdout, "\n")
	for _, w := range want {
		found := false
		for _, l := range lines {
			found = found || l == w
		}
		if r.code != 0 || !found {
			t.Errorf("exit code %d, no %q in\n%s%s", r.code, w, r.stdout, r.stderr)
		}
	}
	for _, wrong := range [][]string{
		{"peer", "bootstrap", "--no-password", "--dry-run"},
		{"peer", "bootstrap", "--origin", "a", "--dry-run"},
		{"peer", "bootstrap", "--origin", "local", "--no-password", "--dry-run"},
		{"peer", "bootstrap", "--origin", "a", "--mirror-user", "root", "--no-password", "--dry-run"},
		{"peer", "check", "--region", "a"},
		{"mirror", "verify", "--region", "a", "--etcd-endpoints", "h:1"},
		{"mirror", "repair", "--region", "a", "--etcd-endpoints", "h:1"},
		{"mirror", "nonsense"},
	} {
		if r := aether(t, wrong...); r.code != 2 {
			t.Errorf("aether %v: exit code %d, %s; want 2", wrong, r.code, r.stderr)
		}
	}
}
