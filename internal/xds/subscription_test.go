package xds

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write what happens into the transcripts")

// store is a catalog of resources whose versions are given.
type store map[string]string

func (s store) resource(_ kind, name string) (*resource, error) {
	v, there := s[name]
	switch {
	case !there:
		return nil, errors.New("no " + name)
	case v == "?":
		return nil, errPending
	}
	return &resource{name: name, version: v}, nil
}

func (s store) everything(kind) ([]string, bool) {
	return slices.Collect(maps.Keys(s)), s["*"] != "?"
}

// transcript runs the lines of a script that begin with > and returns all of it as
// it should be: with what the subscription does, after <, below each.
type transcript struct {
	sub  *subscription
	now  time.Time
	have store
	// versions by the number of the response that had them.
	versions map[string]string
}

func (tr *transcript) run(script string) string {
	var out []string
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "<") {
			continue
		}
		out = append(out, line)
		if command, ok := strings.CutPrefix(line, "> "); ok {
			tr.do(strings.Fields(command))
			out = append(out, tr.look())
		}
	}
	return strings.Join(out, "\n") + "\n"
}

func (tr *transcript) do(f []string) {
	switch f[0] {
	case "there": // name=version…, ? for not known yet
		for _, pair := range f[1:] {
			n, v, _ := strings.Cut(pair, "=")
			tr.have[n] = v
			tr.touch(n)
		}
	case "gone":
		for _, n := range f[1:] {
			delete(tr.have, n)
			tr.touch(n)
		}
	case "pass":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			panic(err)
		}
		tr.now = tr.now.Add(d)
	case "ask": // what ask asked for, as does ack
		tr.request(request{names: f[1:], nonce: tr.sub.last})
	case "again": // as a client that has the version of that response
		tr.sub = newSubscription(tr.sub.kind, tr.sub.delta)
		tr.request(request{names: f[2:], version: tr.versions[f[1]]})
	case "resume": // as a delta client that has those
		tr.sub = newSubscription(tr.sub.kind, true)
		r := request{held: map[string]string{}}
		for _, pair := range f[1:] {
			n, v, _ := strings.Cut(pair, "=")
			r.names, r.held[n] = append(r.names, n), v
		}
		tr.request(r)
	case "drop":
		tr.request(request{dropped: f[1:]})
	case "ack":
		tr.request(request{names: f[2:], nonce: f[1]})
	case "nack":
		tr.request(request{names: f[2:], nonce: f[1], refused: true, reason: "no"})
	default:
		panic("unknown command " + f[0])
	}
}

// touch says that a name has changed, as a session does.
func (tr *transcript) touch(name string) {
	tr.sub.touch(name)
	tr.sub.all = tr.sub.all || tr.sub.wantsAll()
}

func (tr *transcript) request(r request) {
	if tr.sub.stale(r) {
		return
	}
	tr.sub.answered(r.nonce, r.reason, r.refused, tr.now)
	tr.sub.ask(r)
}

func (tr *transcript) look() string {
	r, wait := tr.sub.next(tr.now, tr.have)
	if r == nil {
		if wait > 0 {
			return fmt.Sprintf("< nothing, again in %v", wait)
		}
		return "< nothing"
	}
	tr.versions[r.nonce] = r.version
	line := "< " + r.nonce + ":"
	for _, one := range r.resources {
		line += " " + one.name + "=" + one.version
	}
	if tr.sub.delta {
		for _, n := range r.removed {
			line += " -" + n
		}
	}
	for _, n := range slices.Sorted(maps.Keys(r.errors)) {
		line += " (" + r.errors[n] + ")"
	}
	return line
}

// TestTranscripts: each file of testdata is what a client and a subscription say to
// each other. Its name begins with the protocol and the type.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d transcripts: %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			fatal(t, err)
			protocol, rest, _ := strings.Cut(filepath.Base(file), "_")
			k := assignments
			if strings.HasPrefix(rest, "cds") {
				k = clusters
			}
			tr := &transcript{
				sub: newSubscription(k, protocol == "delta"), now: time.Unix(0, 0), have: store{}, versions: map[string]string{},
			}
			got := tr.run(string(text))
			if *update {
				fatal(t, os.WriteFile(file, []byte(got), 0o644))
			}
			if diff := cmp.Diff(string(text), got); diff != "" && !*update {
				t.Errorf("the transcript is not what happens (-transcript +happens):\n%s", diff)
			}
		})
	}
}
