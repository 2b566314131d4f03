//go:build linux

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/aether-federation/aether/test/clients/clientstest"
)

// fault is a cause of trouble, and its end. Without loses, region b must stay.
type fault struct {
	name  string
	loses bool
	begin func(*fleet)
	end   func(*fleet)
}

// faults returns all of them. What begin picked is what end mends.
func faults() []fault {
	var registrar *process
	var member int
	return []fault{
		{"region killed", true, func(f *fleet) { f.b.kill() }, func(f *fleet) { f.b.revive() }},
		{"link black-holed", true, func(f *fleet) { f.isolate(f.network.Drop) }, func(f *fleet) { f.isolate(f.network.Pass) }},
		{"registrar that mirrors killed", false, func(f *fleet) {
			registrar = f.leader()
			registrar.kill()
		}, func(*fleet) { registrar.start() }},
		{"leader of the region's etcd killed", false, func(f *fleet) {
			member = f.b.etcd.Leader()
			f.b.etcd.Member(member).Kill()
		}, func(f *fleet) { f.b.etcd.Member(member).Restart() }},
		{"leader of the peer's etcd killed", false, func(f *fleet) {
			member = f.a.etcd.Leader()
			f.a.etcd.Member(member).Kill()
		}, func(f *fleet) { f.a.etcd.Member(member).Restart() }},
	}
}

// run is what one fault did.
type run struct {
	withdrawn, lastCall time.Duration
	failed              map[clientstest.Kind]int
}

// TestFailoverTimes measures what each fault does, several times, and prints the
// table of docs/failover.md.
func TestFailoverTimes(t *testing.T) {
	need(t)
	runs := 7
	if text := os.Getenv("AETHER_RUNS"); text != "" {
		var err error
		if runs, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	f := newFleet(t)
	all := faults()
	results := make([][]run, len(all))
	for i := range runs {
		for k, fault := range all {
			r := f.suffer(fault)
			results[k] = append(results[k], r)
			t.Logf("%s, run %d: withdrawn %v, last call %v, failed %s", fault.name, i+1, r.withdrawn, r.lastCall, counts(r.failed))
		}
	}
	t.Logf("TTL %v, %d calls/s from each client, deadline %v\n%s", f.ttl, rate, callDeadline, table(all, results))
}

// suffer begins a fault, measures, ends it and waits until all is as it was.
func (f *fleet) suffer(x fault) run {
	f.t.Helper()
	backends := f.b.backends
	begin := time.Now()
	x.begin(f)
	var r run
	if x.loses {
		_, last := f.awaitWithdrawal(begin)
		r.withdrawn = last.Sub(begin)
		f.reach(remote, f.c.backends...)
		r.lastCall = f.lastCall(remote, begin, backends).Sub(begin)
	} else {
		f.stays(begin)
	}
	r.failed = f.failed(remote, begin)
	x.end(f)
	f.awaitWhole()
	f.reach(remote, backends...)
	f.promised(x, begin, r)
	return r
}

// stays waits until region b would have been withdrawn if nobody had renewed it.
func (f *fleet) stays(begin time.Time) {
	f.t.Helper()
	eventually(f.t, "the TTL has passed", func() bool { return time.Since(begin) > f.ttl+2*withdrawalMargin })
	if at := f.seen.withdrawn(begin); len(at) > 0 {
		f.t.Errorf("region b was withdrawn after %v", at[0].Sub(begin))
	}
}

// promised compares with what design and documents promise.
func (f *fleet) promised(x fault, begin time.Time, r run) {
	f.t.Helper()
	if most := f.ttl + withdrawalMargin; r.withdrawn > most {
		f.t.Errorf("%s: withdrawn after %v, the most is %v", x.name, r.withdrawn, most)
	}
	if most := f.ttl + withdrawalMargin + clientMargin; r.lastCall > most {
		f.t.Errorf("%s: last call after %v, the most is %v", x.name, r.lastCall, most)
	}
	for kind, n := range r.failed {
		if n > 0 && !x.loses {
			f.t.Errorf("%s: %d calls of the %s client failed", x.name, n, kind)
		}
	}
	for kind, n := range f.failed(local, begin) {
		if n > 0 {
			f.t.Errorf("%s: %d calls of the %s client to its own region failed", x.name, n, kind)
		}
	}
}

// leader is the registrar of region b that mirrors to region a.
func (f *fleet) leader() *process {
	f.t.Helper()
	var found *process
	eventually(f.t, "a registrar of region b mirrors to region a", func() bool {
		name := f.b.standing(0, "/v1/peers", "a").Leader
		for _, p := range f.b.registrars {
			if strings.HasSuffix(name, fmt.Sprintf(":%d", p.cmd.Process.Pid)) {
				found = p
			}
		}
		return found != nil
	})
	return found
}

// table is the result in Markdown.
func table(all []fault, results [][]run) string {
	var b strings.Builder
	b.WriteString("| cause | runs | withdrawn at the peer | last call to the lost region | failed calls |\n|---|---|---|---|---|\n")
	for k, fault := range all {
		rs := results[k]
		withdrawn, lastCall := "never", "–"
		if fault.loses {
			withdrawn = spread(rs, func(r run) string { return seconds(r.withdrawn) })
			lastCall = spread(rs, func(r run) string { return seconds(r.lastCall) })
		}
		var failed []string
		for _, kind := range clientstest.Kinds {
			failed = append(failed, fmt.Sprintf("%s %s", kind, spread(rs, func(r run) string { return fmt.Sprintf("%6d", r.failed[kind]) })))
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %s | %s |\n", fault.name, len(rs), withdrawn, lastCall, strings.Join(failed, "; "))
	}
	return b.String()
}

func seconds(d time.Duration) string { return fmt.Sprintf("%6.2f s", d.Seconds()) }

// spread is the least, the median and the most of a figure, whose texts sort as it
// does.
func spread(rs []run, figure func(run) string) string {
	var all []string
	for _, r := range rs {
		all = append(all, figure(r))
	}
	slices.Sort(all)
	parts := []string{all[0], all[len(all)/2], all[len(all)-1]}
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return strings.Join(parts, " / ")
}
