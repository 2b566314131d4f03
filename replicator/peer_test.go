package replicator

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParsePeers(t *testing.T) {
	got, err := ParsePeers([]string{"b=10.0.0.1:2379,https://b2.example:2379", " c = [fd00::1]:2379 "}, "a")
	if err != nil {
		t.Fatal(err)
	}
	want := []Peer{
		{Region: "b", Endpoints: []string{"10.0.0.1:2379", "https://b2.example:2379"}},
		{Region: "c", Endpoints: []string{"[fd00::1]:2379"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, own := range []string{"", "local", "a"} {
		if peers, err := ParsePeers(nil, own); err != nil || len(peers) != 0 {
			t.Errorf("no peers of %q: %v, %v", own, peers, err)
		}
	}
}

func TestParsePeersRefuses(t *testing.T) {
	for _, test := range []struct {
		name    string
		entries []string
		own     string
		want    string
	}{
		{"no own region", []string{"b=h:1"}, "", `own region is ""`},
		{"the default region", []string{"b=h:1"}, "local", `own region is "local"`},
		{"a bad own region", []string{"b=h:1"}, "a/b", "own region"},
		{"the own region", []string{"a=h:1"}, "a", "is the own region"},
		{"an unnamed peer", []string{"local=h:1"}, "a", `peer "local"`},
		{"a region twice", []string{"b=h:1", "b=h:2"}, "a", "given twice"},
		{"an endpoint twice", []string{"b=h:1", "c=http://H:1"}, "a", `is peer "b"'s too`},
		{"no equals sign", []string{"h:1"}, "a", "want <region>="},
		{"no region", []string{"=h:1"}, "a", `peer ""`},
		{"a bad region", []string{"b_=h:1"}, "a", `peer "b_"`},
		{"no endpoint", []string{"b="}, "a", "host:port"},
		{"an empty endpoint", []string{"b=h:1,"}, "a", "host:port"},
		{"no port", []string{"b=h"}, "a", "host:port"},
		{"a port of 0", []string{"b=h:0"}, "a", `port "0"`},
		{"a port too high", []string{"b=h:65536"}, "a", `port "65536"`},
		{"a named port", []string{"b=h:etcd"}, "a", `port "etcd"`},
		{"IPv6 without brackets", []string{"b=fd00::1:2379"}, "a", "brackets"},
		{"another scheme", []string{"b=ftp://h:1"}, "a", `scheme "ftp"`},
		{"a path", []string{"b=https://h:1/v3"}, "a", "nothing behind it"},
		{"a user in the address", []string{"b=https://u:p@h:1"}, "a", "host"},
		{"no host", []string{"b=:1"}, "a", "host"},
	} {
		t.Run(test.name, func(t *testing.T) {
			peers, err := ParsePeers(test.entries, test.own)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v and error %v, want one with %q", peers, err, test.want)
			}
		})
	}
}

func FuzzParsePeers(f *testing.F) {
	f.Add("b=10.0.0.1:2379,[::1]:1")
	f.Fuzz(func(t *testing.T, entry string) {
		peers, err := ParsePeers([]string{entry}, "a")
		if err != nil {
			return
		}
		again, err := ParsePeers([]string{peers[0].Region + "=" + strings.Join(peers[0].Endpoints, ",")}, "a")
		if err != nil {
			t.Fatalf("%q parses to %v, which does not parse: %v", entry, peers, err)
		}
		if diff := cmp.Diff(peers, again); diff != "" {
			t.Error(diff)
		}
	})
}
