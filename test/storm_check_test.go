package test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aether-federation/aether/registry/keyspace"
	"github.com/aether-federation/aether/registry/wire"
	"github.com/aether-federation/aether/test/crew"
)

// await waits until wrong has nothing to say.
func await(t *testing.T, wrong func() string) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		what := wrong()
		if what == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after %v it is still so that %s", patience, what)
		}
	}
}

// loss is an endpoint that left the view of a client, or was not fit to serve
// there.
type loss struct {
	crew.Loss
	viewer *hand
}

func (l loss) String() string {
	return fmt.Sprintf("%s sees %s: %s at %s", l.viewer.name, l.Line, l.What, l.At.Format("15:04:05.000"))
}

// ask asks a client that runs, and keeps what it tells of losses.
func (f *stormFleet) ask(h *hand, command string) crew.State {
	f.t.Helper()
	state := h.client.Ask(command)
	for _, l := range state.Losses {
		f.losses = append(f.losses, loss{Loss: l, viewer: h})
	}
	for _, e := range state.Errors {
		f.t.Errorf("%s: %s", h.name, e)
	}
	return state
}

// whole waits until everything is as if nothing had ever happened: the regions'
// states, what each client sees, and what each etcd holds. All faults are healed.
// Clients rest meanwhile.
func (f *stormFleet) whole() {
	f.t.Helper()
	want := map[string][]string{}
	for _, h := range f.crew() {
		want[h.region] = append(want[h.region], f.ask(h, crew.Freeze).Own...)
	}
	var all []string
	for _, r := range f.regions {
		slices.Sort(want[r.name])
		all = append(all, want[r.name]...)
	}
	slices.Sort(all)
	f.awaitWell()
	for _, r := range f.regions {
		for _, of := range f.regions {
			await(f.t, func() string { return f.holds(r, of.name, want[of.name]) })
		}
	}
	for _, h := range f.crew() {
		await(f.t, func() string { return compare(h.name+" sees", f.ask(h, crew.Tell).View, all) })
	}
	for _, h := range f.crew() {
		f.ask(h, crew.Thaw)
	}
}

// awaitWell waits until all registrars say that all is well.
func (f *stormFleet) awaitWell() {
	f.t.Helper()
	for _, r := range f.regions {
		for _, s := range r.registrars {
			await(f.t, func() string { return r.unwell(s) })
		}
	}
}

// regionStatus is what a registrar says of a region or a peer.
type regionStatus struct{ State, Reason, Leader string }

// unwell says what is not as it should be by what a registrar of r says.
func (r *stormRegion) unwell(s *station) string {
	regions, why := s.statuses("/v1/regions")
	peers, whyNot := s.statuses("/v1/peers")
	if why+whyNot != "" {
		return why + whyNot
	}
	states := map[string]int{}
	for _, x := range append(regions, peers...) {
		if x.Reason != "" {
			return fmt.Sprintf("%s says %s: %s", s.part.name, x.State, x.Reason)
		}
		states[x.State]++
	}
	// The other region is live here, and the mirror to it there.
	if states["own"] != 1 || states["live"] != 2 || len(states) != 2 {
		return fmt.Sprintf("%s has regions and peers in the states %v", s.part.name, states)
	}
	if !r.leads(peers[0].Leader) {
		return fmt.Sprintf("by %s the mirror is led by %s, which is gone", s.part.name, peers[0].Leader)
	}
	return ""
}

// leads reports whether a leader, by its name, is one of the processes that run.
func (r *stormRegion) leads(leader string) bool {
	return slices.ContainsFunc(r.registrars, func(s *station) bool {
		return strings.HasSuffix(leader, fmt.Sprintf(":%d", s.cmd.Process.Pid))
	})
}

// statuses asks at /v1/regions or /v1/peers, or says why there is no answer.
func (s *station) statuses(path string) (all []regionStatus, why string) {
	resp, err := http.Get("http://" + s.http + path)
	if err != nil {
		return nil, fmt.Sprintf("%s does not answer: %v", s.part.name, err)
	}
	defer resp.Body.Close()
	var answer struct{ Regions, Peers []regionStatus }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
		return nil, fmt.Sprintf("%s answers %s: %s, %v", s.part.name, path, resp.Status, err)
	}
	return append(answer.Regions, answer.Peers...), ""
}

// holds says in what the etcd of r differs from what it should hold of a region.
func (f *stormFleet) holds(r *stormRegion, of string, want []string) string {
	f.t.Helper()
	var got []string
	for _, kv := range keys(f.t, r.etcd, keyspace.RegionPrefix(of)) {
		key, err := keyspace.Parse(kv.key)
		if err != nil {
			return err.Error()
		}
		e, _, err := wire.ParseValue(key, []byte(kv.value))
		if err != nil {
			return fmt.Sprintf("%s: %v", kv.key, err)
		}
		if (kv.lease != 0) != (of != r.name) {
			return fmt.Sprintf("%s is on lease %x in etcd %s", kv.key, kv.lease, r.name)
		}
		got = append(got, crew.Line(e))
	}
	slices.Sort(got)
	return compare(fmt.Sprintf("etcd %s holds of region %s", r.name, of), got, want)
}

// few are the lines that a difference is told by.
const few = 6

// compare says in what sorted lines differ.
func compare(what string, got, want []string) string {
	if slices.Equal(got, want) {
		return ""
	}
	var differ []string
	for _, side := range []struct {
		mark    string
		of, not []string
	}{{"without", want, got}, {"with", got, want}} {
		for _, line := range side.of {
			if _, found := slices.BinarySearch(side.not, line); !found && len(differ) < few {
				differ = append(differ, side.mark+" "+line)
			}
		}
	}
	return fmt.Sprintf("%s %d, not %d:\n%s", what, len(got), len(want), strings.Join(differ, "\n"))
}

// settled waits until a fault that lasts has had the effect that is documented,
// and no other: of the endpoints that their nodes never change, those of nodes
// that nobody hears are gone, and so are regions that are cut off, at their peers.
func (f *stormFleet) settled(b blow) {
	f.t.Helper()
	for _, h := range f.crew() {
		if !h.running() || slices.Contains(b.away, h) {
			continue
		}
		var want []string
		for _, other := range f.crew() {
			if !slices.Contains(b.away, other) && !slices.Contains(b.cut, route{from: other.region, to: h.region}) {
				want = append(want, f.stable[other]...)
			}
		}
		slices.Sort(want)
		await(f.t, func() string {
			state := f.ask(h, crew.Tell)
			if !state.Synced {
				return "" // started while there is nobody to ask
			}
			return compare(h.name+" sees", stable(state.View), want)
		})
	}
}

// stable picks the lines of endpoints that their nodes never change.
func stable(lines []string) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !crew.Stable(line) })
}

// excuse is what may leave a view.
type excuse struct {
	nodes  []*hand
	routes []route
}

// covers reports whether a loss is as documented.
func (x excuse) covers(l loss) bool {
	if slices.Contains(x.routes, route{from: l.Region, to: l.viewer.region}) {
		return true
	}
	return slices.ContainsFunc(x.nodes, func(h *hand) bool { return h.region == l.Region && h.node == l.Node })
}

// judge fails the test for each endpoint that should not have left a view, and
// returns how many did as they should.
func (f *stormFleet) judge(x excuse) int {
	f.t.Helper()
	told := 0
	for _, l := range f.losses {
		if x.covers(l) {
			continue
		}
		if told++; told <= few {
			f.t.Errorf("%v", l)
		}
	}
	if told > 0 {
		f.t.Fatalf("%d endpoints that were well left a view", told)
	}
	excused := len(f.losses)
	f.losses = nil
	return excused
}
