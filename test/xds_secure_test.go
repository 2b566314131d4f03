package test

import (
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/certtest"
	"github.com/aether-federation/aether/test/clients/clientstest"
)

// TestClientsByTLS: grpc-go shows the registrar the certificate that its bootstrap file
// names. Clients of the other kinds know no such credentials, in the versions that are
// tried here, and say so: docs/xds.md tells what to do with them.
func TestClientsByTLS(t *testing.T) {
	ca := certtest.New(t)
	ca.Server("server")
	ca.Client("client")
	policy := filepath.Join(t.TempDir(), "auth.yaml")
	write(t, policy, "rules:\n- role: writer\n  identities: [cn:client]\n")
	p := newRegistrar(t, "--data-dir", t.TempDir(), "--embedded-etcd-client-url", "http://127.0.0.1:0", "--auth", policy,
		"--tls-cert", ca.Cert("server"), "--tls-key", ca.Key("server"), "--tls-client-ca", ca.CA())
	p.launch()
	with := []string{"--registrar", p.grpc, "--tls-ca", ca.CA(), "--tls-cert", ca.Cert("client"), "--tls-key", ca.Key("client")}
	eventually(t, "the registrar serves a client with a certificate", func() bool {
		return aether(t, append([]string{"services"}, with...)...).code == 0
	})
	back := newBackends(t)
	back.start("home")
	_, port, err := net.SplitHostPort(back.at["home"].Address)
	if err != nil {
		t.Fatal(err)
	}
	if r := aether(t, append([]string{"register", "echo", back.ip("home"), "--protocol", "grpc", "--port", "grpc=" + port}, with...)...); r.code != 0 {
		t.Fatal(r.stderr)
	}
	bootstrap := filepath.Join(t.TempDir(), "bootstrap.json")
	if r := aether(t, append([]string{"xds", "bootstrap", "--node", "test", "--file", bootstrap}, with...)...); r.code != 0 {
		t.Fatal(r.stderr)
	}
	for _, kind := range clientstest.Kinds {
		t.Run(string(kind), func(t *testing.T) {
			clientstest.Need(t, kind)
			c := &callers{t: t, all: []*clientstest.Client{programs.Client(t, clientstest.Options{
				Kind: kind, Target: "xds:///echo", Rate: steady, Deadline: callDeadline, Bootstrap: bootstrap,
			})}}
			if kind == clientstest.Go {
				c.reach("home")
				c.stop()
				return
			}
			begin := time.Now()
			eventually(t, "calls fail", func() bool { return c.all[0].Recent(begin)["failed"] > 0 })
		})
	}
}
