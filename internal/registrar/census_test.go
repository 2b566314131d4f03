package registrar

import (
	"net/netip"
	"testing"
	"time"

	"github.com/aether-federation/aether/registry"
)

var (
	censusOwn   = registry.Origin{Region: "a", Cluster: "c1"}
	censusOther = registry.Origin{Region: "a", Cluster: "c10"}
)

// counting drives a census through time.
type counting struct {
	t      *testing.T
	census *Census
	now    time.Time
	// served is the health of each endpoint, as the view is told.
	served map[registry.Key]registry.Health
}

func newCounting(t *testing.T) *counting {
	return &counting{
		t: t, now: time.Now(), served: map[registry.Key]registry.Health{},
		census: NewCensus(CensusConfig{Origin: censusOwn, Grace: time.Minute, BlindAfter: 3 * time.Second}),
	}
}

func (c *counting) tell(u Update) {
	u.At = c.now
	more := c.census.take(&u, c.now)
	for _, e := range append(u.Endpoints, more...) {
		if e.Delete {
			delete(c.served, e.Endpoint.Key)
		} else {
			c.served[e.Endpoint.Key] = e.Endpoint.Health
		}
	}
}

// pass lets time go by with proof that the feed is current.
func (c *counting) pass(d time.Duration) {
	for range int(d / time.Second) {
		c.now = c.now.Add(time.Second)
		c.tell(Update{Progress: true})
	}
}

func censusEndpoint(o registry.Origin, node string, n byte) EndpointChange {
	return EndpointChange{ModRevision: int64(n), Endpoint: registry.Endpoint{
		Key:  registry.Key{Origin: o, Service: "api", Protocol: registry.HTTP, IP: netip.AddrFrom4([4]byte{10, 0, 0, n})},
		Node: node, Health: registry.Healthy,
	}}
}

func (c *counting) health(want registry.Health, e EndpointChange) {
	c.t.Helper()
	if got, ok := c.served[e.Endpoint.Key]; !ok || got != want {
		c.t.Errorf("%s is served as %v, %v, want %v", e.Endpoint.IP, got, ok, want)
	}
}

func TestCensusOfNodes(t *testing.T) {
	c := newCounting(t)
	if !c.census.Present("n1") || !c.census.Known(registry.Key{}) || c.census.Roll().Current {
		t.Error("what is not known yet is denied")
	}
	mine, theirs, free, far := censusEndpoint(censusOwn, "n1", 1), censusEndpoint(censusOwn, "n2", 2), censusEndpoint(censusOwn, "", 3), censusEndpoint(censusOther, "n1", 4)
	c.tell(Update{Reset: true, Endpoints: []EndpointChange{mine, theirs}})
	if c.census.Roll().Current {
		t.Error("a load under way is current")
	}
	c.tell(Update{Synced: true, Endpoints: []EndpointChange{free, far}, Presence: []PresenceChange{
		{Origin: censusOwn, Node: "n2"}, {Origin: censusOther, Node: "n1"}, {Origin: censusOwn, Registrar: "r1"},
	}})
	r := c.census.Roll()
	if !r.Current || r.Registrars != 1 || r.Endpoints != 3 || len(r.Absent) != 1 || len(r.Absent["n1"]) != 1 || r.Absent["n1"][0].ModRevision != 1 {
		t.Errorf("roll: %+v", r)
	}
	if c.census.Present("n1") || !c.census.Present("n2") || c.census.Known(censusEndpoint(censusOwn, "", 9).Endpoint.Key) {
		t.Error("presence or keys are wrong")
	}
	moved := censusEndpoint(censusOwn, "n2", 1)
	c.tell(Update{Endpoints: []EndpointChange{moved}})
	held, present, err := c.census.holdings("n2")
	if err != nil || !present || len(held) != 2 || len(c.census.Roll().Absent) != 0 {
		t.Errorf("n2 holds %v, %v, %v", held, present, err)
	}
	moved.Delete = true
	c.tell(Update{Endpoints: []EndpointChange{moved}, Presence: []PresenceChange{{Origin: censusOwn, Node: "n2", Deleted: true}}})
	if r := c.census.Roll(); len(r.Absent["n2"]) != 1 || r.Endpoints != 2 {
		t.Errorf("roll: %+v", r)
	}
}

// A cluster of which nothing is present is served as unhealthy after the grace, and
// as it is once something of it is back; a reload in between changes nothing.
func TestCensusOfClusters(t *testing.T) {
	c := newCounting(t)
	mine, other := censusEndpoint(censusOwn, "", 1), censusEndpoint(censusOther, "", 2)
	there := PresenceChange{Origin: censusOther, Registrar: "r9"}
	c.tell(Update{Reset: true, Synced: true, Endpoints: []EndpointChange{mine, other}, Presence: []PresenceChange{there}})
	c.pass(2 * time.Minute)
	c.health(registry.Healthy, other)
	gone := there
	gone.Deleted = true
	c.tell(Update{Presence: []PresenceChange{gone}})
	c.pass(59 * time.Second)
	c.health(registry.Healthy, other)
	c.pass(2 * time.Second)
	c.health(registry.Unhealthy, other)
	c.health(registry.Healthy, mine)

	late := censusEndpoint(censusOther, "", 3)
	c.tell(Update{Endpoints: []EndpointChange{late}})
	c.health(registry.Unhealthy, late)
	c.tell(Update{Reset: true, Synced: true, Endpoints: []EndpointChange{mine, other, late}})
	c.health(registry.Unhealthy, other)

	c.tell(Update{Presence: []PresenceChange{there}})
	c.pass(time.Second)
	c.health(registry.Healthy, other)
	c.health(registry.Healthy, late)
	if dead := c.census.Dead(); len(dead) != 0 {
		t.Errorf("dead are %v", dead)
	}
}

// While the feed is blind nothing is lost, and the grace starts over after.
func TestBlindCensusLosesNothing(t *testing.T) {
	c := newCounting(t)
	other := censusEndpoint(censusOther, "", 2)
	c.tell(Update{Reset: true, Synced: true, Endpoints: []EndpointChange{other}})
	c.pass(50 * time.Second)
	c.now = c.now.Add(time.Hour)
	c.pass(50 * time.Second)
	c.health(registry.Healthy, other)
	c.pass(20 * time.Second)
	c.health(registry.Unhealthy, other)
}
