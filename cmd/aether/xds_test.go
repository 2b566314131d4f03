package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/aether-federation/aether/internal/xds"
)

func TestXDSBootstrap(t *testing.T) {
	tests := []struct {
		args string
		code int
		want string
	}{
		{"--registrar r:1,s:2 --node n --region a --zone a1 --network x", exitFine, `"server_uri":"s:2"`},
		{"--registrar r:1 --node n --network=", exitFine, `"metadata":{"network":""}`},
		{"--registrar r:1 --node n", exitFine, `"node":{"id":"n","locality":{}}`},
		{"--registrar r:1 --node n --tls", exitFine, `"type":"tls"`},
		{"--registrar r", exitUsage, "want host:port"},
		{"--registrar r:1 --tls-ca /nowhere", exitUsage, "no such file"},
		{"--registrar r:1 --tls-cert c", exitUsage, "--tls-cert and --tls-key go together"},
		{"--registrar r:1 --region a/b", exitUsage, "region"},
		{"--registrar r:1 --zone ü", exitUsage, "zone"},
		{"--registrar r:1 --network a,b", exitUsage, "network"},
	}
	for _, tt := range tests {
		var out, errOut, compact bytes.Buffer
		code := run(t.Context(), append([]string{"xds", "bootstrap"}, strings.Fields(tt.args)...), streams{out: &out, err: &errOut})
		if code == exitFine {
			if err := json.Compact(&compact, out.Bytes()); err != nil {
				t.Errorf("%s: %v", tt.args, err)
			}
		}
		if got := compact.String() + errOut.String(); code != tt.code || !strings.Contains(got, tt.want) {
			t.Errorf("aether xds bootstrap %s: exit code %d, %s, want %d and %s", tt.args, code, got, tt.code, tt.want)
		}
	}
}

func TestXDSStatusTellsOfRefusals(t *testing.T) {
	taken := xds.Status{Node: "n1", Resources: []xds.ResourceStatus{{Type: "eds", Name: "api", State: xds.Acknowledged}}}
	refused := xds.Status{Node: "n2", Resources: []xds.ResourceStatus{{Type: "eds", Name: "api", State: xds.Refused, Error: "no"}}}
	if err := troubled([]xds.Status{taken}); err != nil {
		t.Error(err)
	}
	if err := troubled([]xds.Status{taken, refused}); err == nil || !strings.Contains(err.Error(), "n2") {
		t.Errorf("got %v", err)
	}
	var out bytes.Buffer
	a := &app{streams: streams{out: &out}}
	if err := a.xdsStatusTable([]xds.Status{taken, refused}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "n2: eds api refused: no") {
		t.Errorf("the table:\n%s", out.String())
	}
}
