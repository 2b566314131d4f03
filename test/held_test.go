package test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/aether-federation/aether/internal/etcdtest"
)

// TestEmptiedOriginIsHeldUntilAccepted: an operator finds the mirror of an origin
// whose etcd was replaced held, looks at what a repair would delete, and accepts it.
func TestEmptiedOriginIsHeldUntilAccepted(t *testing.T) {
	regions := fleet(t, "a", "b")
	a, b := regions[0].registrar(t, "a1"), regions[1].registrar(t, "b1")
	var want []string
	for i := range 5 {
		a.register("hello", fmt.Sprintf("10.0.0.%d", i+1), 1001)
		want = append(want, fmt.Sprintf("a/a1 10.0.0.%d:1001", i+1))
	}
	b.awaitEndpoints("hello", want...)
	a.stop()

	empty := &region{name: "a", etcd: etcdtest.StartProcess(t), peers: regions[0].peers}
	second := empty.registrar(t, "a1")
	second.register("hello", "10.0.0.9", 9009)
	second.awaitState("/v1/peers", "b", "held")
	b.awaitEndpoints("hello", want...)

	repair := []string{"mirror", "repair", "--region", "a", "--peer", "b", "--etcd-endpoints", empty.etcd.Endpoint(), "--peer-etcd", "b=" + regions[1].etcd.Endpoint()}
	shown := aether(t, repair...)
	if shown.code != 1 || !strings.Contains(shown.stdout, "held") || !strings.Contains(shown.stderr, "delete 5") {
		t.Fatalf("repair ended with %d, %s%s", shown.code, shown.stdout, shown.stderr)
	}
	if s := aether(t, "mirror", "status", "--registrar", second.grpc); s.code != 1 || !strings.Contains(s.stderr, "delete 5 of the mirror's 5 keys") {
		t.Errorf("mirror status ended with %d, %s%s", s.code, s.stdout, s.stderr)
	}
	if accepted := aether(t, append(repair, "--accept")...); accepted.code != 0 {
		t.Fatalf("accepting ended with %d, %s", accepted.code, accepted.stderr)
	}
	second.awaitState("/v1/peers", "b", "live")
	b.awaitEndpoints("hello", "a/a1 10.0.0.9:9009")
	if after := aether(t, append(repair[:1:1], append([]string{"verify"}, repair[2:]...)...)...); after.code != 0 {
		t.Errorf("the mirror still differs: %s%s", after.stdout, after.stderr)
	}
}
