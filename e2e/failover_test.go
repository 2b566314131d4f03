//go:build linux

package e2e

import (
	"fmt"
	"os"
	"regexp"
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

// asked are the faults whose name AETHER_CAUSES matches.
func asked(t *testing.T) []fault {
	t.Helper()
	which, err := regexp.Compile(os.Getenv("AETHER_CAUSES"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(faults(), func(x fault) bool { return !which.MatchString(x.name) })
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
	withdrawn time.Duration
	// lastCall and failed are those of the groups that call the region.
	lastCall map[group]time.Duration
	failed   map[group]map[clientstest.Kind]int
	// after are the calls that failed once the fault was over.
	after map[group]map[clientstest.Kind]int
}

// callers are the groups that call region b.
var callers = []group{abroad, alert}

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
	all := asked(t)
	results := make([][]run, len(all))
	for i := range runs {
		for k, fault := range all {
			r := f.suffer(fault)
			results[k] = append(results[k], r)
			for _, g := range callers {
				t.Logf("%s, run %d, %s: withdrawn %v, last call %v, failed %s, afterwards %s", fault.name, i+1, g.name,
					r.withdrawn, r.lastCall[g], counts(r.failed[g]), counts(r.after[g]))
			}
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
	r := run{
		lastCall: map[group]time.Duration{},
		failed:   map[group]map[clientstest.Kind]int{}, after: map[group]map[clientstest.Kind]int{},
	}
	if x.loses {
		_, last := f.awaitWithdrawal(begin)
		r.withdrawn = last.Sub(begin)
	} else {
		f.stays(begin)
	}
	for _, g := range callers {
		if x.loses {
			f.reach(g, f.c.backends...)
			r.lastCall[g] = f.lastCall(g, begin, backends).Sub(begin)
		}
		r.failed[g] = f.failed(g, begin)
	}
	over := time.Now()
	x.end(f)
	f.awaitWhole()
	for _, g := range callers {
		f.reach(g, backends...)
		r.after[g] = f.failed(g, over)
	}
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
	for _, g := range callers {
		if most := f.ttl + withdrawalMargin + clientMargin; r.lastCall[g] > most {
			f.t.Errorf("%s: last call to the %s after %v, the most is %v", x.name, g.name, r.lastCall[g], most)
		}
		if !x.loses {
			f.unharmed(x, g, begin)
		}
	}
	f.unharmed(x, atHome, begin)
}

// unharmed fails if a call of a group failed since a fault began.
func (f *fleet) unharmed(x fault, g group, begin time.Time) {
	f.t.Helper()
	if failed := f.times(g, begin); failed != "" {
		f.t.Errorf("%s: calls to the %s failed:%s", x.name, g.name, failed)
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

// table is the result in Markdown: the least, the median and the most of each figure.
func table(all []fault, results [][]run) string {
	var b strings.Builder
	b.WriteString("| cause | runs | withdrawn at the peer, s | clients | last call, s | failed, go | failed, node | failed, python | afterwards: go | node | python |\n")
	b.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for k, fault := range all {
		for _, g := range callers {
			withdrawn, lastCall := "never", "–"
			if fault.loses {
				withdrawn = spread(results[k], func(r run) float64 { return r.withdrawn.Seconds() }, 2)
				lastCall = spread(results[k], func(r run) float64 { return r.lastCall[g].Seconds() }, 2)
			}
			fmt.Fprintf(&b, "| %s | %d | %s | %s | %s |", fault.name, len(results[k]), withdrawn, g.name, lastCall)
			for _, kind := range clientstest.Kinds {
				fmt.Fprintf(&b, " %s |", spread(results[k], func(r run) float64 { return float64(r.failed[g][kind]) }, 0))
			}
			for _, kind := range clientstest.Kinds {
				fmt.Fprintf(&b, " %s |", spread(results[k], func(r run) float64 { return float64(r.after[g][kind]) }, 0))
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

// spread is the least, the median and the most of a figure.
func spread(runs []run, figure func(run) float64, digits int) string {
	var all []float64
	for _, r := range runs {
		all = append(all, figure(r))
	}
	slices.Sort(all)
	return fmt.Sprintf("%.*f / %.*f / %.*f", digits, all[0], digits, all[len(all)/2], digits, all[len(all)-1])
}
