package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	registryv1 "github.com/aether-federation/aether/api/aether/registry/v1"
	"github.com/aether-federation/aether/internal/config"
)

func TestFlagsWinOverTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	text := "region: a\ncluster-name: a1\nlease-ttl: 10s\npeer-etcd: [b=h:1, c=h:2]\netcd-endpoints: [h:3]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	given := pflag.NewFlagSet("", pflag.ContinueOnError)
	unused := config.Default()
	registrarFlags(given, &unused)
	if err := given.Parse([]string{"--cluster-name", "a2", "--peer-etcd", "d=h:4,h:5", "--insecure-listen"}); err != nil {
		t.Fatal(err)
	}
	c, err := merge(given, file)
	if err != nil {
		t.Fatal(err)
	}
	if c.Region != "a" || c.LeaseTTL != 10*time.Second || !slices.Equal(c.EtcdEndpoints, []string{"h:3"}) {
		t.Errorf("the file's values are %+v", c)
	}
	if c.ClusterName != "a2" || !c.InsecureListen || !slices.Equal(c.PeerEtcd, []string{"d=h:4,h:5"}) {
		t.Errorf("the flags' values are %+v", c)
	}
	if c.HTTPAddress != config.DefaultHTTPAddress {
		t.Errorf("what nobody gave is %+v", c)
	}
}

// TestFlagsAreTheFilesKeys: whoever knows one knows the other.
func TestFlagsAreTheFilesKeys(t *testing.T) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	c := config.Default()
	registrarFlags(flags, &c)
	flags.VisitAll(func(f *pflag.Flag) {
		if _, err := config.Parse([]byte(f.Name + ":\n")); err != nil {
			t.Errorf("--%s is no key of the file: %v", f.Name, err)
		}
	})
}

func TestTroubles(t *testing.T) {
	tests := []struct {
		name    string
		regions []*registryv1.Region
		peers   []*registryv1.Peer
		want    []string
	}{
		{name: "none", regions: []*registryv1.Region{{State: "own"}, {State: "live"}}, peers: []*registryv1.Peer{{State: "live"}}},
		{name: "another mirrors", peers: []*registryv1.Peer{{State: "standby", Leader: "x"}}},
		{name: "nobody mirrors", peers: []*registryv1.Peer{{Region: "b", State: "standby"}}, want: []string{"the mirror to b is standby"}},
		{
			name:    "the own etcd",
			regions: []*registryv1.Region{{Region: "a", State: "own", Reason: "own etcd has not answered for 8s"}},
			want:    []string{"region a: own etcd has not answered for 8s"},
		},
		{
			name:    "a region and a peer",
			regions: []*registryv1.Region{{Region: "b", State: "lapsed", Reason: "no keepalive"}},
			peers:   []*registryv1.Peer{{Region: "b", State: "connecting", LastError: "refused"}},
			want:    []string{"region b is lapsed: no keepalive", "the mirror to b is connecting: refused"},
		},
	}
	for _, tt := range tests {
		if got := findTroubles(tt.regions, tt.peers); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestEveryCommandSaysWhatItDoes: help is there, and goes to standard output.
func TestEveryCommandSaysWhatItDoes(t *testing.T) {
	a := &app{}
	for _, c := range a.root().Commands() {
		if c.Hidden {
			continue
		}
		var out, errOut bytes.Buffer
		code := run(t.Context(), []string{c.Name(), "--help"}, streams{out: &out, err: &errOut})
		if code != exitFine || !strings.Contains(out.String(), "Usage:") || errOut.Len() > 0 {
			t.Errorf("aether %s --help: exit code %d, %q, %q", c.Name(), code, out.String(), errOut.String())
		}
		if c.Short == "" {
			t.Errorf("aether %s has no summary", c.Name())
		}
	}
}

func TestVersionAndCompletions(t *testing.T) {
	for args, want := range map[string]string{
		"--version":                       versionLine() + "\n",
		"version":                         versionLine() + "\n",
		"__complete services -o ":         "table\njson\n",
		"__complete register --protocol ": "http\ngrpc\ntcp\nudp\n",
	} {
		var out, errOut bytes.Buffer
		code := run(t.Context(), strings.Split(args, " "), streams{out: &out, err: &errOut})
		if code != exitFine || !strings.HasPrefix(out.String(), want) {
			t.Errorf("aether %s: exit code %d, %q, %q, want %q", args, code, out.String(), errOut.String(), want)
		}
	}
}

func TestUnknownShellIsWrongUsage(t *testing.T) {
	for args, want := range map[string]int{"completion bash": exitFine, "completion": exitFine, "completion ksh": exitUsage, "xds ksh": exitUsage} {
		var out, errOut bytes.Buffer
		if code := run(t.Context(), strings.Split(args, " "), streams{out: &out, err: &errOut}); code != want {
			t.Errorf("aether %s: exit code %d, %q, want %d", args, code, errOut.String(), want)
		}
	}
}
