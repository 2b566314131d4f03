package test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/aether-federation/aether/test/crew"
)

const (
	// soakVariable is for how long the storm lasts: a duration. Without it each
	// fault is dealt once. seedVariable chooses the order.
	soakVariable = "AETHER_SOAK"
	seedVariable = "AETHER_SEED"
	// faultsVariable is a pattern for what the first fault of each pair is; without
	// it they are all.
	faultsVariable = "AETHER_FAULTS"
	// A pause between two blows of a bout is up to maxPause.
	minPause = 50 * time.Millisecond
	maxPause = 700 * time.Millisecond
	// One bout in longEvery is long: its first fault lasts until its effect is
	// seen, or for longLasts, more than any TTL.
	longEvery = 12
	longLasts = stormTTL + 3*time.Second
)

// bout is two faults, the second dealt while the first lasts.
type bout struct {
	first, second fault
	long          bool
}

// TestStorm lets faults befall each part of a fleet, in seeded orders, while its
// 50 nodes change what they have. After each bout every client sees, and each
// etcd holds, exactly what the nodes have, and no endpoint that was well the whole
// time has left any view.
func TestStorm(t *testing.T) {
	seed, until := plan(t)
	t.Logf("%s=%d", seedVariable, seed)
	random := rand.New(rand.NewPCG(seed, 0))
	noLeaks(t)
	f := newStormFleet(t, newCrewClient)
	f.awaitWell()
	idle := f.goroutines()
	f.launchCrew()
	f.awaitLaunched()

	bouts := once(random)
	if !until.IsZero() {
		bouts = everyPair(random, regexp.MustCompile(os.Getenv(faultsVariable)))
	}
	for i, b := range bouts {
		if !until.IsZero() && time.Now().After(until) {
			t.Logf("time is over after %d of %d pairs", i, len(bouts))
			break
		}
		f.fight(i, b, random)
	}
	f.endInOrder(idle)
}

// plan reads the environment.
func plan(t *testing.T) (seed uint64, until time.Time) {
	t.Helper()
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv(seedVariable), "1"), 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", seedVariable, err)
	}
	if os.Getenv(soakVariable) == "" {
		return seed, time.Time{}
	}
	lasts, err := time.ParseDuration(os.Getenv(soakVariable))
	if err != nil {
		t.Fatalf("%s: %v", soakVariable, err)
	}
	return seed, time.Now().Add(lasts)
}

// noLeaks fails the test if goroutines that it started outlive it.
func noLeaks(t *testing.T) {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	// The proxy of links leaves one behind for each connection that is closed with
	// data under way.
	proxy := goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*ToxicStub).Run")
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		goleak.VerifyNone(t, ignore, proxy)
	})
}

// once deals each fault once.
func once(random *rand.Rand) []bout {
	all := faults()
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if len(all)%2 == 1 {
		all = append(all, all[0])
	}
	var bouts []bout
	for i := 0; i < len(all); i += 2 {
		bouts = append(bouts, bout{first: all[i], second: all[i+1]})
	}
	return bouts
}

// everyPair deals each fault after, and during, each fault that is asked for.
func everyPair(random *rand.Rand, asked *regexp.Regexp) []bout {
	var bouts []bout
	for _, first := range faults() {
		if !asked.MatchString(first.name) {
			continue
		}
		for _, second := range faults() {
			bouts = append(bouts, bout{first: first, second: second})
		}
	}
	random.Shuffle(len(bouts), func(i, j int) { bouts[i], bouts[j] = bouts[j], bouts[i] })
	for i := range bouts {
		bouts[i].long = i%longEvery == longEvery-1
	}
	return bouts
}

// fight deals both faults of a bout, heals them, and checks what came of it.
func (f *stormFleet) fight(i int, b bout, random *rand.Rand) {
	f.t.Helper()
	f.t.Logf("bout %d: %s, then %s, long %v", i, b.first.name, b.second.name, b.long)
	began := time.Now()
	first := b.first.deal(f, random)
	f.pause(random)
	second := b.second.deal(f, random)
	f.pause(random)
	x := excuse{}
	if b.long {
		second.end()
		f.settled(first)
		f.hold(time.Until(began.Add(longLasts)))
		first.end()
		x = first.excuse(second)
	} else {
		f.heal(first, second, random)
	}
	healed := time.Now()
	f.whole()
	f.t.Logf("%s, %s: healed %v after the start, whole %v later, %d endpoints left views and came back", first.what, second.what,
		healed.Sub(began).Round(time.Millisecond), time.Since(healed).Round(time.Millisecond), f.judge(x))
}

// heal ends both, in either order.
func (f *stormFleet) heal(first, second blow, random *rand.Rand) {
	if random.IntN(2) == 0 {
		first, second = second, first
	}
	first.end()
	f.pause(random)
	second.end()
}

func (f *stormFleet) pause(random *rand.Rand) {
	f.hold(minPause + time.Duration(random.Int64N(int64(maxPause-minPause))))
}

// hold lets a fault last.
func (f *stormFleet) hold(d time.Duration) { <-time.After(d) }

// excuse is what may leave a view while b lasts, with second in between.
func (b blow) excuse(second blow) excuse {
	x := excuse{nodes: b.away, routes: append(slices.Clone(b.cut), b.frozen...)}
	for _, r := range b.delays {
		if slices.Contains(second.delays, r) || slices.Contains(second.cut, r) {
			x.routes = append(x.routes, r)
		}
	}
	return x
}

// awaitLaunched waits until all clients see all others.
func (f *stormFleet) awaitLaunched() {
	f.t.Helper()
	f.whole()
	for _, h := range f.crew() {
		f.stable[h] = stable(f.ask(h, crew.Tell).Own)
	}
	f.judge(excuse{})
}

// slack is how many goroutines a registrar may have more than when it was new:
// the tests' own connections, calls that end.
const slack = 20

// endInOrder ends clients, registrars and etcds. Registrars that have no clients
// any more are as they were without, and no process is left.
func (f *stormFleet) endInOrder(idle map[*station]int) {
	f.t.Helper()
	for _, h := range f.crew() {
		h.end()
	}
	await(f.t, func() string {
		for s, n := range f.goroutines() {
			if n > idle[s]+slack {
				return fmt.Sprintf("%s has %d goroutines and had %d before its clients came", s.part.name, n, idle[s])
			}
		}
		return ""
	})
	for _, s := range f.stations() {
		s.end()
		s.sane()
	}
	for _, r := range f.regions {
		for _, p := range r.etcds {
			p.end()
		}
	}
	if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		f.t.Errorf("a process is left: %d, %v", pid, err)
	}
}

// sane fails the test for what no log may say.
func (s *station) sane() {
	s.t.Helper()
	log, err := os.ReadFile(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, never := range []string{"DATA RACE", "panic: "} {
		if strings.Contains(string(log), never) {
			s.t.Errorf("the log of %s says %q", s.part.name, never)
		}
	}
}

var goroutinesMetric = regexp.MustCompile(`(?m)^go_goroutines (\d+)$`)

// goroutines counts those of the registrars.
func (f *stormFleet) goroutines() map[*station]int {
	f.t.Helper()
	out := map[*station]int{}
	for _, s := range f.stations() {
		found := goroutinesMetric.FindStringSubmatch(s.metrics())
		if found == nil {
			f.t.Fatalf("%s does not tell its goroutines", s.part.name)
		}
		n, err := strconv.Atoi(found[1])
		if err != nil {
			f.t.Fatal(err)
		}
		out[s] = n
	}
	return out
}
