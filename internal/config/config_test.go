package config_test

import (
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aether-federation/aether/internal/config"
)

// sample is the configuration that is shipped.
var sample = filepath.Join("..", "..", "docs", "registrar.yaml")

func TestSample(t *testing.T) {
	c, err := config.Load(sample)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	peers, err := c.Peers()
	if err != nil {
		t.Fatal(err)
	}
	if len(peers) != 2 || peers[0].Region != "b" || peers[1].Region != "c" {
		t.Errorf("peers %v, want b and c", peers)
	}
}

// TestSampleNamesEveryKey: a key that nobody can find in the sample is not there.
func TestSampleNamesEveryKey(t *testing.T) {
	text, err := os.ReadFile(sample)
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[config.Registrar](), reflect.TypeFor[config.Peer]()} {
		for i := range typ.NumField() {
			if key := typ.Field(i).Tag.Get("yaml"); !strings.Contains(string(text), key+":") {
				t.Errorf("the sample does not name %s", key)
			}
		}
	}
}

func TestParse(t *testing.T) {
	c, err := config.Parse([]byte("region: x\nlease-ttl: 10s\n"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Region != "x" || c.LeaseTTL != 10*time.Second || c.ClusterName != config.Local {
		t.Errorf("got %+v, want what was given and the defaults", c)
	}
	if c, err = config.Parse(nil); err != nil || !reflect.DeepEqual(c, config.Default()) {
		t.Errorf("an empty document: %+v, %v; want the defaults", c, err)
	}
	for name, doc := range map[string]string{
		"unknown key":   "regoin: a",
		"wrong type":    "lease-ttl: [1]",
		"two documents": "region: a\n---\nregion: b\n",
	} {
		if _, err := config.Parse([]byte(doc)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestDurationWithoutUnit(t *testing.T) {
	_, err := config.Parse([]byte("lease-ttl: 5\n"))
	if err == nil || !strings.Contains(err.Error(), "want a duration such as 30s") {
		t.Errorf("a duration without its unit: %v", err)
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name   string
		change func(*config.Registrar)
		want   string // part of the error; empty: none
	}{
		{"defaults", func(*config.Registrar) {}, ""},
		{"region", func(c *config.Registrar) { c.Region = "a/b" }, "--region"},
		{"cluster", func(c *config.Registrar) { c.ClusterName = "" }, "--cluster-name"},
		{"ttl", func(c *config.Registrar) { c.LeaseTTL = time.Second }, "--lease-ttl"},
		{"ttl with a fraction", func(c *config.Registrar) { c.LeaseTTL = 10500 * time.Millisecond }, "--lease-ttl"},
		{"peers of nobody", func(c *config.Registrar) { c.PeerEtcd = []string{"b=h:1"} }, "--region"},
		{"peers of region local", func(c *config.Registrar) { withPeers(c, "b=h:1"); c.Region = "local" }, "--region"},
		{"peers", func(c *config.Registrar) { withPeers(c, "b=h:1", "c=https://h:2,[::1]:3") }, ""},
		{"own region as peer", func(c *config.Registrar) { withPeers(c, "a=h:1") }, "own region"},
		{"peer twice", func(c *config.Registrar) { withPeers(c, "b=h:1", "b=h:2") }, "twice"},
		{"peer twice, in two ways", func(c *config.Registrar) {
			withPeers(c, "b=h:1")
			c.PeerList = []config.Peer{{Region: "b", Endpoints: []string{"h:2"}}}
		}, "twice"},
		{"malformed peer", func(c *config.Registrar) { withPeers(c, "b") }, "--peer-etcd"},
		{"half a peer's certificate", func(c *config.Registrar) {
			withPeers(c)
			c.PeerList = []config.Peer{{Region: "b", Endpoints: []string{"h:2"}, Cert: "x"}}
		}, "cert and key"},
		{"etcd", func(c *config.Registrar) { c.EtcdEndpoints = []string{"h:1", "http://h:2", "https://[::1]:3"} }, ""},
		{"etcd without port", func(c *config.Registrar) { c.EtcdEndpoints = []string{"h"} }, "--etcd-endpoints"},
		{"etcd without host", func(c *config.Registrar) { c.EtcdEndpoints = []string{":2379"} }, "host"},
		{"etcd scheme", func(c *config.Registrar) { c.EtcdEndpoints = []string{"ftp://h:1"} }, "--etcd-endpoints"},
		{"half a certificate", func(c *config.Registrar) { c.EtcdEndpoints, c.EtcdKey = []string{"h:1"}, "k" }, "--etcd-cert"},
		{"user without password", func(c *config.Registrar) { c.EtcdEndpoints, c.EtcdUser = []string{"h:1"}, "u" }, "--etcd-password-file"},
		{"TLS to the embedded etcd", func(c *config.Registrar) { c.EtcdCA = "x" }, "--etcd-endpoints"},
		{"open embedded etcd", func(c *config.Registrar) { c.EmbeddedEtcdClientURL = "http://10.0.0.1:2379" }, "--insecure-listen"},
		{"open listener", func(c *config.Registrar) { c.GRPCAddress = ":8443" }, "--insecure-listen"},
		{"open listener, accepted", func(c *config.Registrar) { c.GRPCAddress, c.InsecureListen = ":8443", true }, ""},
		{"open listener with TLS", func(c *config.Registrar) { c.GRPCAddress, c.TLSCert, c.TLSKey = ":8443", "c", "k" }, ""},
		{"IPv6 loopback", func(c *config.Registrar) { c.HTTPAddress = "[::1]:0" }, ""},
		{"no port", func(c *config.Registrar) { c.HTTPAddress = "127.0.0.1" }, "--http-address"},
		{"port", func(c *config.Registrar) { c.HTTPAddress = "127.0.0.1:70000" }, "--http-address"},
		{"key without certificate", func(c *config.Registrar) { c.TLSKey = "k" }, "--tls-cert"},
		{"client CA alone", func(c *config.Registrar) { c.TLSClientCA = "x" }, "--tls-client-ca"},
		{"client CA without a policy", func(c *config.Registrar) { c.TLSClientCA, c.TLSCert, c.TLSKey = "x", "c", "k" }, "--auth"},
		{"client CA, accepted", func(c *config.Registrar) { c.TLSClientCA, c.TLSCert, c.TLSKey, c.Auth = "x", "c", "k", "off" }, ""},
		{"policy without client CA", func(c *config.Registrar) { c.Auth = "auth.yaml" }, "--tls-client-ca"},
		{"no burst", func(c *config.Registrar) { c.ClientBurst = 0 }, "--client-burst"},
		{"a negative limit", func(c *config.Registrar) { c.ClientStreams = -1 }, "--client-streams"},
		{"lapsed", func(c *config.Registrar) { c.Lapsed = "keep" }, "--lapsed"},
		{"presence with a fraction", func(c *config.Registrar) { c.PresenceTTL = 2500 * time.Millisecond }, "--presence-ttl"},
		{"no grace", func(c *config.Registrar) { c.SweepGrace = 0 }, "--sweep-grace"},
		{"no share", func(c *config.Registrar) { c.SweepMaxShare = 0 }, "--sweep-max-share"},
		{"more than everything", func(c *config.Registrar) { c.SweepMaxShare = 1.5 }, "--sweep-max-share"},
		{"network", func(c *config.Registrar) { c.Network = "a b" }, "--network"},
		{"region order", func(c *config.Registrar) { c.RegionOrder = []string{"a", "b", "a"} }, "twice"},
		{"region of the order", func(c *config.Registrar) { c.RegionOrder = []string{"a/b"} }, "region order"},
		{"spill factor", func(c *config.Registrar) { c.SpillFactor = 0.5 }, "spill factor"},
		{"no number as a spill factor", func(c *config.Registrar) { c.SpillFactor = math.NaN() }, "spill factor"},
		{"no number as a spill ceiling", func(c *config.Registrar) { c.SpillCeiling = math.NaN() }, "spill ceiling"},
		{"no number as a share", func(c *config.Registrar) { c.SweepMaxShare = math.NaN() }, "--sweep-max-share"},
		{"no number as a rate", func(c *config.Registrar) { c.ClientRate = math.NaN() }, "--client-rate"},
		{"no spill ceiling", func(c *config.Registrar) { c.SpillCeiling = 0 }, "--spill-ceiling"},
		{"spill ceiling", func(c *config.Registrar) { c.SpillCeiling = 1.5 }, "spill ceiling"},
		{"level", func(c *config.Registrar) { c.LogLevel = "loud" }, "--log-level"},
		{"format", func(c *config.Registrar) { c.LogFormat = "xml" }, "--log-format"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := config.Default()
			tt.change(&c)
			err := c.Validate()
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%v, want an error that names %s", err, tt.want)
			}
		})
	}
}

func withPeers(c *config.Registrar, entries ...string) {
	c.Region, c.ClusterName, c.PeerEtcd = "a", "c1", entries
}
