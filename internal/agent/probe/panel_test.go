package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/aether-federation/aether/registry"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errIll = errors.New("ill")

func keyOf(n int) registry.Key {
	return registry.Key{Service: fmt.Sprint("s", n), Protocol: registry.HTTP, IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)})}
}

// bench is a panel with a clock of its own.
type bench struct {
	t   *testing.T
	p   *panel
	now time.Time
}

// panelOf has n endpoints, each with an address of its own unless they share one.
func panelOf(t *testing.T, n int, share bool, known map[registry.Key]bool) *bench {
	t.Helper()
	b := &bench{t: t, p: newPanel(), now: time.Unix(1000, 0)}
	checks := map[registry.Key]Check{}
	for i := range n {
		port := uint16(8000 + i)
		if share {
			port = 8000
		}
		c := Check{Kind: TCP, Target: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port), Rise: 2, Fall: 3}.WithDefaults()
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		checks[keyOf(i)] = c
	}
	b.p.set(checks, known)
	return b
}

// round has each of these endpoints answer once, within one interval.
func (b *bench) round(err error, endpoints ...int) {
	for _, n := range endpoints {
		b.now = b.now.Add(DefaultInterval / time.Duration(len(endpoints)))
		b.p.take(keyOf(n), Result{At: b.now, Err: err})
	}
}

// want checks healths, as in "+-?": healthy, ill, unknown.
func (b *bench) want(healths string, suspect bool) {
	b.t.Helper()
	got := ""
	for n := range healths {
		switch v := b.p.cases[keyOf(n)].Verdict; {
		case !v.Known:
			got += "?"
		case v.Healthy:
			got += "+"
		default:
			got += "-"
		}
	}
	if got != healths || suspect == b.p.suspect.IsZero() {
		b.t.Errorf("healths %s, suspect since %v; want %s, suspect %v", got, b.p.suspect, healths, suspect)
	}
}

func TestThresholds(t *testing.T) {
	b := panelOf(t, 1, false, nil)
	b.want("?", false)
	b.round(nil, 0)
	b.want("+", false)
	b.round(errIll, 0, 0)
	b.round(nil, 0)
	b.round(errIll, 0, 0)
	b.want("+", false)
	b.round(errIll, 0)
	b.want("-", false)
	b.round(nil, 0)
	b.round(errIll, 0)
	b.round(nil, 0)
	b.want("-", false)
	b.round(nil, 0)
	b.want("+", false)
}

func TestFirstResultDecides(t *testing.T) {
	b := panelOf(t, 2, false, nil)
	b.round(errIll, 0)
	b.want("??", false) // the other one has not been asked
	b.round(nil, 1)
	b.want("-+", false)
}

func TestKnownHealthStands(t *testing.T) {
	b := panelOf(t, 2, false, map[registry.Key]bool{keyOf(0): true, keyOf(1): false})
	b.want("+-", false)
	b.round(errIll, 0, 0)
	b.round(nil, 1)
	b.want("+-", false)
	b.round(errIll, 0)
	b.round(nil, 1)
	b.want("-+", false)
}

func TestAllAtOnceIsTheMachine(t *testing.T) {
	b := panelOf(t, 4, false, nil)
	b.round(nil, 0, 1, 2, 3)
	for range 5 {
		b.round(errIll, 0, 1, 2, 3)
	}
	b.want("++++", true)
	b.round(nil, 2)
	b.want("++++", false)
	b.round(errIll, 0, 1, 3)
	b.round(nil, 0, 1, 2)
	b.want("++++", false) // the last one fails for the second time since
	b.round(nil, 0, 1, 2)
	b.round(errIll, 3)
	b.round(errIll, 3)
	b.want("+++-", false)
}

func TestOneAfterAnotherIsTheirs(t *testing.T) {
	b := panelOf(t, 4, false, nil)
	b.round(nil, 0, 1, 2, 3)
	for dead := range 4 {
		for range 3 {
			for n := range 4 {
				if n <= dead {
					b.round(errIll, n)
				} else {
					b.round(nil, n)
				}
			}
		}
	}
	b.want("----", false)
}

func TestFewOrOneAddressAreTheirOwn(t *testing.T) {
	few := panelOf(t, 2, false, nil)
	few.round(nil, 0, 1)
	one := panelOf(t, 4, true, nil)
	one.round(nil, 0, 1, 2, 3)
	for range 3 {
		few.round(errIll, 0, 1)
		one.round(errIll, 0, 1, 2, 3)
	}
	few.want("--", false)
	one.want("----", false)
}

func TestWhatIsIllAlreadyDoesNotCount(t *testing.T) {
	b := panelOf(t, 4, false, nil)
	b.round(nil, 1, 2, 3)
	b.round(errIll, 0)
	b.want("-+++", false)
	for range 4 {
		b.round(errIll, 0, 1, 2, 3)
	}
	b.want("-+++", true)
}

func TestFreshStartWithoutNetwork(t *testing.T) {
	b := panelOf(t, 3, false, nil)
	for range 4 {
		b.round(errIll, 0, 1, 2)
	}
	b.want("???", true)
	b.round(nil, 1)
	b.want("?+?", false)
	b.round(errIll, 0)
	b.round(nil, 2)
	b.want("-++", false)
}

func TestWitnessesAreAskedWhenOneFails(t *testing.T) {
	b := panelOf(t, 20, false, nil)
	for n := range 20 {
		b.round(nil, n)
	}
	b.now = b.now.Add(time.Second)
	_, ask := b.p.take(keyOf(5), Result{At: b.now, Err: errIll})
	if len(ask) != witnesses || ask[0] != keyOf(0) || ask[5] != keyOf(6) {
		t.Errorf("asked are %v", ask)
	}
	b.round(nil, 0)
	_, ask = b.p.take(keyOf(5), Result{At: b.now, Err: errIll})
	if len(ask) != 0 {
		t.Errorf("one has answered since, and asked are %v", ask)
	}
}

// TestSlowWitnesses: one that is asked every second does not fall for the machine
// because those that are asked every minute have not been.
func TestSlowWitnesses(t *testing.T) {
	b := panelOf(t, 3, false, nil)
	b.round(nil, 0, 1, 2)
	b.now = b.now.Add(time.Second)
	_, ask := b.p.take(keyOf(0), Result{At: b.now, Err: errIll})
	for _, k := range ask {
		b.p.take(k, Result{At: b.now.Add(time.Millisecond), Err: errIll})
	}
	b.round(errIll, 0, 0, 0)
	b.want("+++", true)
}

func TestSetForgetsAndKeeps(t *testing.T) {
	b := panelOf(t, 2, false, nil)
	b.round(nil, 0, 1)
	changed := b.p.cases[keyOf(0)].check
	changed.Path = "/other"
	b.p.set(map[registry.Key]Check{keyOf(0): changed}, nil)
	if len(b.p.cases) != 1 || !b.p.cases[keyOf(0)].Healthy || !b.p.cases[keyOf(0)].Last.At.IsZero() {
		t.Errorf("cases are %+v", b.p.cases)
	}
}

func TestSuspicionEndsWithTheEndpoints(t *testing.T) {
	b := panelOf(t, 3, false, nil)
	b.round(nil, 0, 1, 2)
	for range 3 {
		b.round(errIll, 0, 1, 2)
	}
	b.want("+++", true)
	b.p.set(map[registry.Key]Check{keyOf(0): b.p.cases[keyOf(0)].check}, nil)
	b.want("+", false)
}

func TestCheckValidation(t *testing.T) {
	good := Check{Kind: HTTP, Target: netip.MustParseAddrPort("127.0.0.1:80")}
	if err := good.WithDefaults().Validate(); err != nil {
		t.Error(err)
	}
	for field, change := range map[string]func(*Check){
		"type":            func(c *Check) { c.Kind = "icmp" },
		"port":            func(c *Check) { c.Target = netip.AddrPort{} },
		"path":            func(c *Check) { c.Path = "healthz" },
		"status":          func(c *Check) { c.StatusFrom, c.StatusTo = 300, 200 },
		"service":         func(c *Check) { c.Service = "x" },
		"tls-skip-verify": func(c *Check) { c.SkipVerify = true },
		"interval":        func(c *Check) { c.Interval = time.Millisecond },
		"timeout":         func(c *Check) { c.Timeout = time.Minute },
		"rise":            func(c *Check) { c.Rise = -1 },
		"fall":            func(c *Check) { c.Fall = 1000 },
		"tls":             func(c *Check) { c.Kind, c.TLS = TCP, true },
	} {
		c := good
		change(&c)
		err := c.WithDefaults().Validate()
		e, ok := errors.AsType[*registry.Error](err)
		if !ok || e.Field != field || e.Kind != registry.Invalid {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestStarvedMachine: one endpoint fails often enough before others have answered at
// all. It is judged by what they say, not before, and at once then.
func TestStarvedMachine(t *testing.T) {
	starved := func(n int) *bench {
		b := panelOf(t, n, false, nil)
		for i := range n {
			b.round(nil, i)
		}
		b.round(errIll, 0, 0, 0, 0)
		return b
	}
	b := starved(3)
	b.want("+++", false)
	b.round(errIll, 1)
	b.want("+++", false)
	b.round(errIll, 2)
	b.want("+++", true)

	b = starved(3)
	b.round(errIll, 1)
	b.round(nil, 2)
	b.want("-++", false)

	b = starved(2)
	b.want("-+", false) // too few to tell
}
