package source

import (
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/aether-federation/aether/internal/agent/probe"
	"github.com/aether-federation/aether/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var defaults = Defaults{IP: netip.MustParseAddr("10.0.0.9"), Zone: "a1"}

func TestParse(t *testing.T) {
	got, problems := Parse("f.yaml", []byte(`
services:
  - name: api.shop
    protocol: http
    ip: "::ffff:10.0.0.1"
    instance: i-1
    ports: {http: 8080, admin: 9090}
    weight: 3
    health: draining
    zone: a2
    network: n
    gateways: {http: "203.0.113.7:80"}
    metadata: {version: v1}
    check: {type: http, port: admin, path: /healthz, status: 200-204, interval: 3s, timeout: 1s, rise: 1, fall: 5}
  - name: db
    protocol: tcp
    ports: {sql: 5432}
    check: {type: tcp}
`), defaults)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := []Declared{
		{
			From: "f.yaml:3",
			Endpoint: registry.Endpoint{
				Key:    registry.Key{Service: "api.shop", Protocol: registry.HTTP, IP: netip.MustParseAddr("10.0.0.1"), Instance: "i-1"},
				Ports:  []registry.Port{{Name: "admin", Number: 9090}, {Name: "http", Number: 8080}},
				Weight: 3, Health: registry.Draining, Zone: "a2", Network: "n",
				Gateways: map[string]netip.AddrPort{"http": netip.MustParseAddrPort("203.0.113.7:80")},
				Metadata: map[string]string{"version": "v1"},
			},
			Check: &probe.Check{
				Kind: probe.HTTP, Target: netip.MustParseAddrPort("10.0.0.1:9090"), Path: "/healthz", StatusFrom: 200, StatusTo: 204,
				Interval: 3 * time.Second, Timeout: time.Second, Rise: 1, Fall: 5,
			},
		},
		{
			From: "f.yaml:15",
			Endpoint: registry.Endpoint{
				Key:   registry.Key{Service: "db", Protocol: registry.TCP, IP: netip.MustParseAddr("10.0.0.9")},
				Ports: []registry.Port{{Name: "sql", Number: 5432}}, Health: registry.Healthy, Zone: "a1",
			},
			Check: &probe.Check{
				Kind: probe.TCP, Target: netip.MustParseAddrPort("10.0.0.9:5432"),
				Interval: probe.DefaultInterval, Timeout: probe.DefaultTimeout, Rise: probe.DefaultRise, Fall: probe.DefaultFall,
			},
		},
	}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); d != "" {
		t.Error(d)
	}
}

func TestNothingOnPurpose(t *testing.T) {
	got, problems := Parse("f.yaml", []byte("services: []\n"), defaults)
	if len(got)+len(problems) > 0 {
		t.Errorf("%v, %v", got, problems)
	}
}

// TestProblems: what is wrong is told with its line.
func TestProblems(t *testing.T) {
	const item = "services:\n- name: api\n  protocol: http\n  ip: 10.0.0.1\n"
	tests := map[string]struct{ text, want string }{
		"empty":              {"", "f.yaml: the file is empty"},
		"only a comment":     {"# later\n", "f.yaml: the file is empty"},
		"no list":            {"services:\n", "f.yaml: there is no list of services"},
		"something else":     {"service: []\n", "f.yaml:1: field service is unknown"},
		"two documents":      {"services: []\n---\nservices: []\n", "f.yaml: there is more than one"},
		"half written":       {item + "  ports: {http: 80\n", "f.yaml:"},
		"unknown key":        {item + "  prots: {}\n", "f.yaml:5: field prots is unknown"},
		"name":               {"services:\n- protocol: http\n  ip: 10.0.0.1\n  name: API\n", `f.yaml:4: name: "API" is not a DNS name`},
		"protocol":           {"services:\n- name: api\n  ip: 10.0.0.1\n", "f.yaml:2: protocol: is empty"},
		"ip":                 {"services:\n- name: api\n  protocol: tcp\n  ip: 10.0.0\n", "f.yaml:4: ip:"},
		"port":               {item + "  ports:\n    HTTP: 80\n", "f.yaml:6: ports[0].name"},
		"port number":        {item + "  ports:\n    http: eighty\n", "f.yaml:6: "},
		"health":             {item + "  health: fine\n", `f.yaml:5: health: "fine" is unknown`},
		"gateway":            {item + "  ports: {http: 80}\n  gateways:\n    http: x\n", "f.yaml:7: gateways.http"},
		"check's type":       {item + "  ports: {http: 80}\n  check:\n    type: ping\n", `f.yaml:7: check.type: "ping" is unknown`},
		"check's port":       {item + "  ports: {a: 80, b: 81}\n  check:\n    type: tcp\n", "f.yaml:7: check.port"},
		"check's interval":   {item + "  ports: {a: 80}\n  check:\n    type: tcp\n    interval: 5\n", "f.yaml:8: `5`: want a duration such as 5s"},
		"check's timeout":    {item + "  ports: {a: 80}\n  check:\n    type: tcp\n    timeout: 9s\n", "f.yaml:8: check.timeout"},
		"check's status":     {item + "  ports: {a: 80}\n  check:\n    type: http\n    status: ok\n", "f.yaml:8: check.status"},
		"twice":              {item + "- name: api\n  protocol: http\n  ip: 10.0.0.1\n", "f.yaml:5: name: api/http at 10.0.0.1 is declared at line 2 already"},
		"no document at all": {"hello", "f.yaml:1: "},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, problems := Parse("f.yaml", []byte(tt.text), defaults)
			if len(got) > 0 || len(problems) == 0 || !strings.HasPrefix(problems[0].String(), tt.want) {
				t.Errorf("%v\nwant %s", problems, tt.want)
			}
		})
	}
}

func TestEachProblemIsTold(t *testing.T) {
	_, problems := Parse("f.yaml", []byte("services:\n- {name: A, protocol: http}\n- {name: b, protocol: smtp}\n"), defaults)
	if len(problems) != 2 || problems[1].Where != "f.yaml:3" {
		t.Errorf("problems are %v", problems)
	}
}

func FuzzParse(f *testing.F) {
	sample, err := os.ReadFile("../../../docs/services.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sample)
	f.Add([]byte("services: []"))
	f.Add([]byte("services:\n- name: a\n  check: {}\n- &x [*x]"))
	f.Fuzz(func(t *testing.T, text []byte) {
		got, problems := Parse("f", text, defaults)
		if len(got) > 0 && len(problems) > 0 {
			t.Error("declared and wrong at once")
		}
		for _, d := range got {
			if _, err := Check(d.Endpoint); err != nil {
				t.Errorf("declared, and not valid: %v", err)
			}
			if d.Check != nil && d.Check.Validate() != nil {
				t.Errorf("a check that is not valid: %+v", d.Check)
			}
		}
	})
}
